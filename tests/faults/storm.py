"""A server with a real engine process under a storm of clients: what each of them got, and what was left behind.

Everything that chance decides comes from a seed. The server runs in a thread of the test's process, so that its tasks,
places and connections can be counted; its engine is a process that can be killed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from imp_server.api.model_text_side import ModelTextSide
from imp_server.config import Config
from imp_server.engine.client.process import ProcessEngine

from tests.api.live_server import LiveServer, live_server
from tests.models.tiny_gguf import write_tiny_llama

Json = dict[str, Any]
MODEL = "tiny"
N_BLOCKS = 512
LIMIT_S = 90.0
"""In which every request has to come to its end."""
SETTINGS: Json = {
    "engine.backend": "reference",
    "engine.restart_backoff_s": 0.05,
    "engine.restart_backoff_max_s": 0.2,
    "engine.crash_limit": 1_000_000,
    "kv_cache.max_blocks": N_BLOCKS,
    "model.chat_template": "chatml",
    "server.max_concurrent": 0,
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}


@contextmanager
def storm_server(folder: Path, **settings: Any) -> Iterator[LiveServer]:
    """`settings`: with __ for the dot."""
    path = folder / "tiny.gguf"
    if not path.exists():
        write_tiny_llama(path, context=4096)
    own = SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}
    config = Config.of(own)
    engine = ProcessEngine(path, MODEL, config)
    with live_server(engine, lambda: ModelTextSide.load(path, config, None), model=MODEL, settings=own) as live:
        yield live


def engine_of(live: LiveServer) -> ProcessEngine:
    assert isinstance(live.client, ProcessEngine)
    return live.client


# --- requests -------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A way to ask for an answer. `text_of` takes an event of a stream, or the whole reply."""

    path: str
    body: Callable[[str, int], Json]
    text_of: Callable[[Json], str]
    streamed: bool
    last: Callable[[Json], bool]
    """Whether an event is the stream's good end."""


def _chat(prompt: str, n: int) -> Json:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": n}


def _delta(item: Json) -> str:
    return "".join(c["delta"].get("content") or "" for c in item.get("choices", ()))


def _never(_: Json) -> bool:
    return False


KINDS: dict[str, Kind] = {
    "chat": Kind("/v1/chat/completions", _chat, lambda r: r["choices"][0]["message"]["content"] or "", False, _never),
    "chat stream": Kind(
        "/v1/chat/completions",
        _chat,
        _delta,
        True,
        lambda item: any(c["finish_reason"] for c in item.get("choices", ())),
    ),
    "schema": Kind(
        "/v1/chat/completions",
        lambda prompt, n: (
            _chat(prompt, n)
            | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
        ),
        lambda r: r["choices"][0]["message"]["content"] or "",
        False,
        _never,
    ),
    "completions stream": Kind(
        "/v1/completions",
        lambda prompt, n: {"prompt": prompt, "max_tokens": n},
        lambda item: "".join(c["text"] for c in item.get("choices", ())),
        True,
        lambda item: any(c["finish_reason"] for c in item.get("choices", ())),
    ),
    "messages stream": Kind(
        "/v1/messages",
        _chat,
        lambda item: item.get("delta", {}).get("text", "") if item["type"] == "content_block_delta" else "",
        True,
        lambda item: item["type"] == "message_stop",
    ),
    "responses stream": Kind(
        "/v1/responses",
        lambda prompt, n: {"input": prompt, "max_output_tokens": n, "store": False},
        lambda item: item["delta"] if item["type"] == "response.output_text.delta" else "",
        True,
        lambda item: item["type"] in ("response.completed", "response.incomplete"),
    ),
    "native stream": Kind(
        "/completion",
        lambda prompt, n: {"prompt": prompt, "n_predict": n},
        lambda item: item.get("content", "") if not item.get("stop") else "",
        True,
        lambda item: bool(item.get("stop")),
    ),
}


@dataclass(frozen=True)
class Ask:
    """One request; equal ones have equal answers, at temperature 0."""

    kind: str
    number: int
    n_tokens: int

    def body(self) -> Json:
        kind = KINDS[self.kind]
        prompt = f"{self.number}: " + "tell me more. " * (1 + 7 * self.number % 23)
        own: Json = {"model": MODEL, "temperature": 0, "seed": 1, "stream": kind.streamed}
        if self.kind != "schema":
            own["ignore_eos"] = True
        return kind.body(prompt, self.n_tokens) | own


@dataclass
class Outcome:
    ask: Ask
    status: int = 0
    text: str = ""
    is_whole: bool = False
    error: Json | None = None
    broken: str = ""
    """What no client should ever see: a cut connection, a frame that isn't one, silence."""
    took_s: float = 0.0


def asks(seed: int, n: int, *, kinds: tuple[str, ...] = tuple(KINDS), most_tokens: int = 40) -> list[Ask]:
    chance = random.Random(seed)
    return [Ask(chance.choice(kinds), chance.randrange(12), chance.choice((2, 8, most_tokens))) for _ in range(n)]


def fulfil(http: httpx.Client, ask: Ask) -> Outcome:
    """What came of it; never raises."""
    outcome, begun = Outcome(ask), time.monotonic()
    try:
        _fulfil(http, ask, outcome)
    except httpx.HTTPError as error:
        outcome.broken = repr(error)
    except (ValueError, KeyError, TypeError) as error:
        outcome.broken = f"malformed: {error!r}"
    outcome.took_s = time.monotonic() - begun
    return outcome


def _fulfil(http: httpx.Client, ask: Ask, outcome: Outcome) -> None:
    kind = KINDS[ask.kind]
    with http.stream("POST", kind.path, json=ask.body()) as reply:
        outcome.status = reply.status_code
        if reply.status_code != 200 or not kind.streamed:
            body = json.loads(reply.read())
            if reply.status_code == 200:
                outcome.text, outcome.is_whole = kind.text_of(body), True
            else:
                outcome.error = body["error"]
                assert_error_shape(ask, body)
            return
        for line in reply.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            item = json.loads(line[6:])
            if "error" in item or item.get("type") in ("error", "response.failed"):
                outcome.error = item
                continue
            outcome.text += kind.text_of(item)
            outcome.is_whole |= kind.last(item)


def assert_error_shape(ask: Ask, body: Json) -> None:
    """As the dialect has it. Raises ValueError."""
    if ask.kind.startswith("messages"):
        good = body.get("type") == "error" and {"type", "message"} <= set(body["error"])
    else:
        good = {"message", "type", "code", "param"} <= set(body["error"])
    if not good:
        raise ValueError(f"an error of another shape: {body}")


def storm(
    url: str,
    wanted: list[Ask],
    n_clients: int,
    *,
    meanwhile: Callable[[], None] | None = None,
    timeout_s: float = LIMIT_S,
    tries: int = 1,
) -> list[Outcome]:
    """Clients on threads of their own take one request after the other; `meanwhile` runs once they are at work.

    `tries`: how often each asks, where it is told to come again (429, 503).
    """
    waiting, outcomes, lock = list(reversed(wanted)), [], threading.Lock()

    def client() -> None:
        with httpx.Client(base_url=url, timeout=timeout_s) as http:
            while True:
                with lock:
                    if not waiting:
                        return
                    ask = waiting.pop()
                for _ in range(tries):
                    outcome = fulfil(http, ask)
                    if outcome.status not in (429, 503):
                        break
                    time.sleep(0.05)
                with lock:
                    outcomes.append(outcome)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(n_clients)]
    for thread in threads:
        thread.start()
    if meanwhile is not None:
        meanwhile()
    end = time.monotonic() + 6 * timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a client waits for ever"
    return outcomes


def truths(url: str, wanted: list[Ask]) -> dict[Ask, str]:
    """The answers in calm, one at a time."""
    with httpx.Client(base_url=url, timeout=LIMIT_S) as http:
        found = {}
        for ask in dict.fromkeys(wanted):
            outcome = fulfil(http, ask)
            assert outcome.is_whole and not outcome.broken, outcome
            found[ask] = outcome.text
        return found


def faults_of(outcomes: list[Outcome], right: dict[Ask, str], *, statuses: tuple[int, ...] = (200,)) -> list[str]:
    """What is wrong with what clients got: each has the right answer, or a well-formed error and no wrong byte."""
    found = []
    for one in outcomes:
        truth = right[one.ask]
        if one.broken:
            found.append(f"{one.ask}: {one.broken}")
        elif one.status not in statuses:
            found.append(f"{one.ask}: {one.status} {one.error}")
        elif one.is_whole and (one.text != truth or one.error):
            found.append(f"{one.ask}: {one.text!r} instead of {truth!r}")
        elif not one.is_whole and one.error is None:
            found.append(f"{one.ask}: it ended without an end: {one.text!r}")
        elif not truth.startswith(one.text.rstrip("\ufffd")):
            found.append(f"{one.ask}: {one.text!r} is no beginning of {truth!r}")
    return found


# --- what is left behind --------------------------------------------------------------------------


class Left(NamedTuple):
    """What a server holds. In peace all but the last three are 0."""

    rows: float
    waiting: float
    blocks_held: float
    places: int
    queued_tokens: int
    body_bytes: int
    replies: int
    connections: int
    tasks: int
    """Of the event loop; those of the server itself are always there."""
    descriptors: int
    threads: int


def left(live: LiveServer) -> Left:
    counters, _ = live.wait(live.services.stats())
    admission = live.services.admission

    def own() -> tuple[int, ...]:
        gc.collect()
        return (
            admission.gate.n_taken,
            admission.queued.n_tokens,
            admission.bodies.n_taken,
            sum(reply.n_choices > 0 for host in live.services.models for reply in host.replies),
            len(admission.connections),
            len(asyncio.all_tasks(live.loop)),
        )

    places, queued, bodies, replies, connections, tasks = live.on_loop(own)
    return Left(
        counters.get("rows_running", -1.0),
        counters.get("requests_waiting", -1.0),
        counters.get("blocks_held", -1.0),
        places,
        queued,
        bodies,
        replies,
        connections,
        tasks,
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
    )


def until_peace(live: LiveServer, before: Left, limit_s: float = 20.0) -> Left:
    """Waits until nothing is held that wasn't before. Raises AssertionError, with what is left over."""
    end = time.monotonic() + limit_s
    while True:
        now = left(live)
        calm = now[:8] == (0,) * 8 and now.tasks <= before.tasks and now.descriptors <= before.descriptors
        if calm and now.threads <= before.threads:
            return now
        assert time.monotonic() < end, f"left behind: {now}, before: {before}"
        time.sleep(0.05)


def wait_ready(live: LiveServer, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while httpx.get(f"{live.url}/ready", timeout=10).status_code != 200:
        assert time.monotonic() < end, "the server must become ready again"
        time.sleep(0.05)
