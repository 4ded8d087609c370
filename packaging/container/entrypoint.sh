#!/bin/sh
# What the image runs: nothing at all = the server with its default model; flags alone = flags of the server; the names
# imp-server, llama-server, imp-cli and imp and their commands as anywhere else; any other program as it is.
set -eu
if [ "$#" -eq 0 ]; then
    set -- imp serve
fi
case "$1" in
    -*) set -- imp serve "$@" ;;
    llama-server) shift && set -- imp-llama-server "$@" ;;
    imp | imp-*) ;;
    *) command -v "$1" >/dev/null 2>&1 || set -- imp "$@" ;;
esac
exec "$@"
