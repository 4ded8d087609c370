"""Servers of other projects, and our own, for the time of a measurement: on free ports, ended behind it."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

KEY = "sk-scorecard"
NAME = "smollm2"
START_S = 120.0
IMP = [sys.executable, "-m", "imp_server.cli.main"]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def answers(port: int) -> bool:
    """Whether a chat is answered: a proxy listens long before it lets requests through."""
    body = {"model": NAME, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello."}]}
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@contextlib.contextmanager
def started(command: list[str], log: Path, port: int) -> Iterator[None]:
    """Raises SystemExit if it ends or doesn't answer in time."""
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + START_S
        while not answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{shlex.join(command)} doesn't serve; {log} has what it said")
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
