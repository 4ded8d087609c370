"""An engine in a process of its own, asked line by line: one side of peers.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
N_SEQUENCES = 8


class Side:
    """One engine in its own process, idle while the other is measured."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.about = self._answer()

    def rate(self, ask: dict[str, Any]) -> float:
        """Tokens per second; bytes per second for {"do": "bandwidth"}."""
        answer = self.answer(ask)
        return float(answer["tokens"]) / float(answer["seconds"])

    def answer(self, ask: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(ask), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with {self._process.wait()}")
        return dict(json.loads(line))


def own_side(model: Path, threads: int, packs: Path) -> Side:
    path = os.pathsep.join([str(HERE.parent / "imp"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "peer_imp.py"), str(model), str(threads), str(N_SEQUENCES), str(packs)]
    return Side(command, dict(os.environ, PYTHONPATH=path))
