"""Fetches one model for a server, in a process of its own: python -m imp_server.weights.fetching NAME.

Each line on stdout is a JSON object: {"file", "done", "total"} in bytes, at most every 100 ms for each file, its first
and last always; at the end {"name"}, or {"error"} with a message for people. The process ends with its stdin.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import msgspec

from imp_server.core import UserFault
from imp_server.weights.pull import pull

_PAUSE_S = 0.1


class FetchTelling:
    """Owner of what was told of each file; called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}

    def progress(self, file: str, done: int, total: int) -> None:
        with self._lock:
            now_s = time.monotonic()
            if file in self._told and done != total and now_s - self._told[file] < _PAUSE_S:
                return
            self._told[file] = now_s
            self.say({"file": file, "done": done, "total": total})

    def say(self, fields: dict[str, object]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(fields) + b"\n")
        sys.stdout.buffer.flush()


def _end_with_stdin() -> None:
    """Nobody waits for the model any more. What is here stays, and the next fetch goes on from it."""
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)


def main(name: str) -> int:
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    telling = FetchTelling()
    try:
        pulled = pull(name, telling.progress)
    except UserFault as error:
        telling.say({"error": error.message})
        return error.exit_code
    telling.say({"name": pulled.name})
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # a thread waits for stdin
