"""What a server's processes take, and what a polite client of it has to wait for, while somebody else does harm."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

TICKS = os.sysconf("SC_CLK_TCK")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


class Taken(NamedTuple):
    """By the API process, its engine, and the zygote with all of its children. Memory in MiB, time in seconds."""

    api_mib: float = 0.0
    engine_mib: float = 0.0
    worker_mib: float = 0.0
    """Of the largest worker."""
    n_workers: int = 0
    cpu_s: float = 0.0

    def most(self, other: Taken) -> Taken:
        return Taken(
            max(self.api_mib, other.api_mib),
            max(self.engine_mib, other.engine_mib),
            max(self.worker_mib, other.worker_mib),
            max(self.n_workers, other.n_workers),
            max(self.cpu_s, other.cpu_s),
        )

    """Of API process and workers, those that have ended included; not the engine's."""


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def _cpu_s(pid: int, *, ended: bool) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11 : 15 if ended else 13])) / TICKS


def taken(pid: int) -> Taken:
    """Of the server that is process `pid`, now."""
    engine = worker = 0.0
    n_workers, cpu_s = 0, _cpu_s(pid, ended=False)
    for child in _children(pid):
        with suppress(OSError):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"imp_server.engine" in command:
                engine += _mib(child)
            elif b"imp_server.workers" in command:
                cpu_s += _cpu_s(child, ended=True)
                for job in _children(child):
                    with suppress(OSError):
                        worker, n_workers = max(worker, _mib(job)), n_workers + 1
                        cpu_s += _cpu_s(job, ended=True)
    return Taken(_mib(pid), engine, worker, n_workers, cpu_s)


class Peaks:
    """Owner of a thread that looks at the processes ten times a second."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._over = threading.Event()
        self._most = taken(pid)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            with suppress(OSError):
                found = taken(self.pid)
                with self._lock:
                    self._most = self._most.most(found)

    def take(self) -> Taken:
        """The most since the last call."""
        with self._lock:
            most, self._most = self._most, taken(self.pid)
        return most

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class Waited(NamedTuple):
    """One chat of the polite client."""

    constrained: bool
    first_s: float
    tokens_per_s: float
    """0: not known. A schema's own text comes many tokens at once, so it isn't counted."""


class PoliteClient:
    """Owner of a thread that chats, one short chat behind the other, every second one under a schema."""

    def __init__(self, url: str, *, n_tokens: int = 16, pause_s: float = 0.05) -> None:
        self._url, self._n_tokens, self._pause_s = url, n_tokens, pause_s
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._chats: list[Waited] = []
        self.faults: list[str] = []
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def take(self) -> list[Waited]:
        """Chats since the last call."""
        found, self._chats = self._chats, []
        return found

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Within it no chat is under way: what the server takes is for others."""
        with self._turn:
            yield

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        number = 0
        with httpx.Client(base_url=self._url, timeout=60) as http:
            while not self._over.wait(self._pause_s):
                number += 1
                try:
                    with self._turn:
                        self._chats.append(self._chat(http, constrained=number % 2 == 0))
                except (httpx.HTTPError, AssertionError) as error:
                    self.faults.append(f"the polite client: {error!r}")

    def _chat(self, http: httpx.Client, *, constrained: bool) -> Waited:
        began = time.monotonic()
        arrived: list[float] = []
        with http.stream("POST", "/v1/chat/completions", json=polite_body(self._n_tokens, constrained)) as reply:
            if reply.status_code != 200:
                raise AssertionError(f"{reply.status_code} {reply.read()[:200]!r}")
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:]).get("choices")
                    assert choices is not None, line[:200]
                    if choices and (choices[0]["delta"].get("content") or choices[0]["finish_reason"]):
                        arrived.append(time.monotonic())
        assert arrived, "no token came"
        rate = (len(arrived) - 1) / (arrived[-1] - arrived[0]) if len(arrived) > 4 and not constrained else 0.0
        return Waited(constrained, arrived[0] - began, rate)


def polite_body(n_tokens: int, constrained: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": f"Say something nice. {time.monotonic_ns() % 997}"}],
        "max_tokens": n_tokens,
        "stream": True,
    }
    if constrained:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    return body


def at_once(n: int, work: Callable[[int], None]) -> None:
    """`work(0..n-1)`, each on a thread of its own."""
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
