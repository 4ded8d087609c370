"""The served smoke of gpu_check.py: imp from a wheelhouse in an environment of its own, and a few requests to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

PORT = 18741
SCHEMA = {
    "type": "object",
    "properties": {"is_done": {"type": "boolean"}},
    "required": ["is_done"],
    "additionalProperties": False,
}


def smoke(wheelhouse: Path, within_s: float) -> dict[str, Any]:
    """What was answered, in bytes. `wheelhouse`: wheels, and a model as `*.gguf`."""
    ends = time.monotonic() + within_s
    models = sorted(wheelhouse.glob("*.gguf"))
    if not models:
        return {"left out": "the wheelhouse has no model (analysis/shaped_models.py writes one)"}
    with tempfile.TemporaryDirectory() as folder:
        python = installed(Path(folder), wheelhouse)
        environment = dict(os.environ, IMP_HOME=folder)
        command = [str(python), "-m", "imp_server.cli.main", "serve", str(models[0]), "--backend", "cuda"]
        server = subprocess.Popen([*command, "--port", str(PORT)], env=environment, stdout=sys.stderr)
        try:
            await_ready(server, ends)
            return asked()
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()


def installed(folder: Path, wheelhouse: Path) -> Path:
    venv.create(folder / "venv", with_pip=True, system_site_packages=True)
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(wheelhouse)]
    subprocess.run([*pip, "imp-server"], check=True)
    return python


def await_ready(server: subprocess.Popen[bytes], ends: float) -> None:
    while time.monotonic() < ends:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError("the server isn't ready in time")


def asked() -> dict[str, Any]:
    """A stream, a constrained reply and a stream that is given up; then that the server still answers."""
    prompt = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 32, "temperature": 0}
    whole = streamed(prompt | {"stream": True})
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    constrained = json.loads(streamed(prompt | {"response_format": form}))
    said = json.loads(constrained["choices"][0]["message"]["content"])
    given_up = streamed(prompt | {"stream": True, "max_tokens": 400}, most=200)
    again = streamed(prompt | {"stream": True})
    return {
        "streamed_bytes": len(whole),
        "the same again": whole.count(b"data:") == again.count(b"data:"),
        "constrained": isinstance(said["is_done"], bool),
        "given_up_after_bytes": len(given_up),
    }


def streamed(body: dict[str, Any], most: int = 1 << 30) -> bytes:
    connection = HTTPConnection("127.0.0.1", PORT, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"{reply.status}: {reply.read()[:300]!r}")
    found = b""
    while len(found) < most and (part := reply.read1(min(4096, most))):
        found += part
    connection.close()
    return found
