"""`python -m imp_server.engine SOCKET RECORDER` (file descriptors): the child that ProcessEngine starts."""

import sys

from imp_server.engine.child import run_child

if __name__ == "__main__":
    sys.exit(run_child(int(sys.argv[1]), int(sys.argv[2])))
