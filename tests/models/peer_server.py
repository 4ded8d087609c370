"""Greedy ids of GGUF files by a llama-server that is started for each."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_PATIENCE_S = 60


def greedy(server: str, path: Path, ids: list[int], n: int) -> list[int] | str:
    """What went wrong, in its own words, where it doesn't load the file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [server, "-m", str(path), "--port", str(port), "-c", "0", "-t", "1", "-np", "1", "-ngl", "0"]
    command += ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-warmup"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            return _asked(process, f"http://127.0.0.1:{port}", ids, n) or _complaint(log)
        finally:
            process.terminate()
            process.wait(10)


def _asked(process: subprocess.Popen[bytes], url: str, ids: list[int], n: int) -> list[int]:
    """None at all where it ends before it is there."""
    until = time.monotonic() + _PATIENCE_S
    body = {"prompt": ids, "n_predict": n, "temperature": 0, "return_tokens": True, "cache_prompt": False}
    body |= {"ignore_eos": False, "samplers": ["top_k"], "top_k": 1}
    while process.poll() is None and time.monotonic() < until:
        try:
            _fetched(f"{url}/health")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
            continue
        found: list[int] = _fetched(f"{url}/completion", body)["tokens"]
        return found
    return []


def _fetched(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def _complaint(log: Any) -> str:
    log.seek(0)
    lines = [line.strip() for line in log if "error" in line.lower() or "assert" in line.lower()]
    return lines[0] if lines else "it ended without a word"
