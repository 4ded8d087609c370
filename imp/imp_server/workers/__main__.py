"""`python -m imp_server.workers FD MODULE...`: the zygote; started by client.Zygote, never by hand."""

import sys

from imp_server.workers.zygote import main

main(int(sys.argv[1]), sys.argv[2:])
