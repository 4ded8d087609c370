"""The hunt for inputs that hurt: sends them, and says of each what it did to the server and to others.

What must hold of an input: an answer in its time, that is no crash (503 says when to try again); a refusal costs a
second of CPU time; memory of each process within its bound; others wait no longer than beside ordinary clients.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from tests.api.hostile_bodies import HostileBody
from tests.faults.hostile_requests import CHAIN
from tests.faults.watched import PoliteClient, Taken, Waited, at_once, taken

MOST_REFUSAL_CPU_S = 1.0
SLACK_CPU_S = 0.5
"""For the request around it: a prompt, a fork, an answer."""
CPU_S_PER_MIB = 0.1
"""Of a body, inflated: it must be received, inflated and read."""
MOST_WAIT_S = 120.0
"""For an answer, a crowd being served at once."""
MOST_API_MIB, MOST_ENGINE_MIB, MOST_WORKER_MIB = 512 + 300, 256 + 128 + 150, 64 + 100
"""Beyond what an idle server takes: the knobs' budgets (bodies; grammars and 128 MiB of keys and values; a check), and
what a run of Python scatters around them. A worker begins with what the zygote has in memory."""
MOST_FIRST_S, MOST_CONSTRAINED_FIRST_S, MOST_TIMES, LEAST_RATE = 0.25, 0.5, 1.5, 0.8
NEVER = re.compile(
    r"^(imp_(?:grammar_dead_ends_total|grammar_blown_caps_total|engine_crashes_total"
    r"|worker_killed_total\{job=\"grammar\"\})\S*) (\S+)$",
    re.MULTILINE,
)
"""Counters that stay 0."""


class Answer(NamedTuple):
    status: int
    text: str
    took_s: float
    retry_after: str | None = None


@dataclass
class Fault:
    """`bodies`: what was sent; one, if it is known which of them did it."""

    what: str
    bodies: list[HostileBody]


class Latency(NamedTuple):
    """What the polite client had of one stretch of time: 90th percentiles of the first token, the median rate."""

    first_s: float
    constrained_first_s: float
    tokens_per_s: float
    n_chats: int


def latency(chats: list[Waited]) -> Latency:
    def first(constrained: bool) -> float:
        waits = sorted(chat.first_s for chat in chats if chat.constrained is constrained)
        return waits[int(0.9 * (len(waits) - 1))] if waits else 0.0

    rates = [chat.tokens_per_s for chat in chats if chat.tokens_per_s]
    return Latency(first(False), first(True), statistics.median(rates) if rates else 0.0, len(chats))


def too_late(found: Latency, base: Latency) -> str:
    """What of the polite client's share is missing; "" if nothing is."""
    bounds = (
        ("a first token", found.first_s, max(MOST_FIRST_S, MOST_TIMES * base.first_s)),
        (
            "a constrained first token",
            found.constrained_first_s,
            max(MOST_CONSTRAINED_FIRST_S, MOST_TIMES * base.constrained_first_s),
        ),
    )
    late = [f"{what} after {took:.2f} s (bound {bound:.2f} s)" for what, took, bound in bounds if took > bound]
    if found.tokens_per_s and found.tokens_per_s < LEAST_RATE * base.tokens_per_s:
        late.append(f"{found.tokens_per_s:.1f} tokens/s instead of {base.tokens_per_s:.1f}")
    return "; ".join(late)


def send(http: httpx.Client, body: HostileBody) -> Answer:
    """A chain counts as one: its last answer."""
    began = time.monotonic()
    reply = _chained(http, body) if body.kind == CHAIN else _posted(http, body.path, body.data, body.headers)
    return Answer(reply.status_code, reply.text, time.monotonic() - began, reply.headers.get("retry-after"))


def _posted(http: httpx.Client, path: str, data: bytes, headers: dict[str, str]) -> httpx.Response:
    return http.post(path, content=data, headers=headers)


def _chained(http: httpx.Client, body: HostileBody) -> httpx.Response:
    fields: dict[str, Any] = json.loads(body.data)
    for _ in range(int(fields["metadata"]["n_links"])):
        reply = http.post(body.path, json=fields)
        if reply.status_code != 200:
            break
        fields["previous_response_id"] = reply.json()["id"]
    return reply


def wrong(answer: Answer) -> str:
    """What is wrong with an answer; "" if nothing is."""
    if answer.status >= 500 and (answer.status != 503 or answer.retry_after is None):
        return f"{answer.status} {answer.text[:300]}"
    if answer.status >= 400 and len(answer.text) > 20_000:
        return f"a refusal of {len(answer.text)} characters"
    if answer.status >= 400 and not isinstance(json.loads(answer.text), dict):
        return "a refusal that is no JSON object"
    return ""


@dataclass
class Target:
    """Owner of the polite client and the look at the processes of one running server."""

    url: str
    pid: int
    polite: PoliteClient
    idle: Taken
    base: Latency | None = None
    n_sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    def check_health(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10) as http:
            assert http.get("/health").status_code == 200
            counted = NEVER.findall(http.get("/metrics").text)
        assert len(counted) >= 4 and not any(float(value) for _, value in counted), counted
        faults, self.polite.faults = self.polite.faults, []
        assert not faults, faults[:3]

    def measure(self, seconds: float, n_clients: int) -> None:
        """The polite client's latency beside ordinary clients."""
        self.polite.take()
        end = time.monotonic() + seconds
        at_once(n_clients, lambda i: _ordinary(self.url, i, end))
        time.sleep(0 if n_clients else seconds)
        self.base = latency(self.polite.take())

    def one(self, body: HostileBody) -> list[Fault]:
        """Send it alone: on a busy machine the polite client's chats would take more meanwhile than it does itself."""
        with self.polite.resting(), httpx.Client(base_url=self.url, timeout=MOST_WAIT_S) as http:
            before = taken(self.pid)
            found = self._judged(http, body)
            after = taken(self.pid)
        cpu_s, bound_s = after.cpu_s - before.cpu_s, cpu_bound_s(body)
        if not found and body.kind != CHAIN and cpu_s > bound_s:
            found.append(Fault(f"{cpu_s:.1f} s of CPU (bound {bound_s:.1f} s)", [body]))
        return found + self._held(before, after, [body])

    def crowd(self, bodies: list[HostileBody], n_clients: int) -> list[Fault]:
        """Send them by so many clients at once, each with a connection of its own."""
        found: list[Fault] = []
        left = list(reversed(bodies))

        def client(_: int) -> None:
            with httpx.Client(base_url=self.url, timeout=MOST_WAIT_S) as http:
                while left:
                    try:
                        body = left.pop()
                    except IndexError:
                        return
                    found.extend(self._judged(http, body))

        at_once(n_clients, client)
        now = taken(self.pid)
        return found + self._held(now, now, bodies)

    def _judged(self, http: httpx.Client, body: HostileBody) -> list[Fault]:
        self.n_sent += 1
        try:
            answer = send(http, body)
        except httpx.HTTPError as error:
            self.answers[type(error).__name__] += 1
            return [Fault(f"no answer: {error!r}", [body])]
        self.answers[str(answer.status)] += 1
        return [Fault(what, [body]) for what in [wrong(answer)] if what]

    def _held(self, before: Taken, after: Taken, bodies: list[HostileBody]) -> list[Fault]:
        found = []
        for name, now, idle, most in (
            ("the API process", after.api_mib, self.idle.api_mib, MOST_API_MIB),
            ("the engine", after.engine_mib, self.idle.engine_mib, MOST_ENGINE_MIB),
            ("a worker", max(before.worker_mib, after.worker_mib), 0.0, MOST_WORKER_MIB),
        ):
            if now - idle > most:
                found.append(Fault(f"{name} holds {now:.0f} MiB, {idle:.0f} when idle", bodies))
        try:
            self.check_health()
        except (AssertionError, httpx.HTTPError) as error:
            found.append(Fault(f"behind it: {error!r}"[:600], bodies))
        return found


def cpu_bound_s(body: HostileBody) -> float:
    n_bytes = max(len(body.data), int(body.inflated))
    return MOST_REFUSAL_CPU_S + SLACK_CPU_S + CPU_S_PER_MIB * n_bytes / 2**20


def _ordinary(url: str, number: int, end: float) -> None:
    with httpx.Client(base_url=url, timeout=60) as http:
        while time.monotonic() < end:
            body = {"messages": [{"role": "user", "content": f"Write. {number}"}], "max_tokens": 12, "model": "m"}
            assert http.post("/v1/chat/completions", json=body).status_code == 200


@contextmanager
def hunted(url: str, pid: int) -> Iterator[Target]:
    polite = PoliteClient(url)
    try:
        yield Target(url, pid, polite, taken(pid))
    finally:
        polite.close()


def minimised(body: HostileBody, still: Callable[[HostileBody], bool], tries: int = 60) -> HostileBody:
    """A smaller body of which `still` holds: members and halves of lists and texts left out one by one."""
    try:
        value = json.loads(body.data)
    except (ValueError, RecursionError):
        return body
    left = tries

    def holds(smaller: Any) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and still(HostileBody(body.kind, body.path, json.dumps(smaller).encode(), body.headers))

    improved = True
    while improved and left > 0:
        improved = False
        for smaller in _smaller(value):
            if left <= 0:
                break
            if holds(smaller):
                value, improved = smaller, True
                break
    return HostileBody(body.kind, body.path, json.dumps(value).encode(), body.headers)


def _smaller(value: Any) -> Iterator[Any]:
    """The largest cuts first."""
    if isinstance(value, list | str) and len(value) > 1:
        half = len(value) // 2
        yield value[:half]
        yield value[half:]
    if isinstance(value, dict):
        for key in sorted(value, key=lambda k: -len(json.dumps(value[k]))):
            yield {k: v for k, v in value.items() if k != key}
        for key, inner in value.items():
            yield from ({**value, key: cut} for cut in _smaller(inner))
    if isinstance(value, list):
        for i, inner in enumerate(value[:20]):
            yield from ([*value[:i], cut, *value[i + 1 :]] for cut in _smaller(inner))
