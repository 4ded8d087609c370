#!/usr/bin/env bash
# try.sh WHEEL: installs it into a new environment and serves the default model from an empty folder, for one answer.
set -euo pipefail
wheel=$(readlink -f "$1")
folder=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip --quiet --disable-pip-version-check install "$wheel"
export IMP_HOME=$folder/home PATH=$folder/env/bin:$PATH
imp --version
imp doctor --port 0
imp serve --port 0 >listening 2>said &
server=$!
for _ in $(seq 600); do
    url=$(sed -n 's/^Server listening on //p' listening)
    if [ -n "$url" ] && curl -sf "$url/ready" >/dev/null; then break; fi
    kill -0 "$server" || { cat said; exit 1; }
    sleep 0.5
done
curl -sf "$url/v1/chat/completions" -H 'content-type: application/json' \
    -d '{"model": "smollm2", "max_tokens": 8, "messages": [{"role": "user", "content": "Name a river."}]}'
echo
