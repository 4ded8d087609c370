"""A short hunt for requests that hold a server; in full it is analysis/hostile_hunt.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.hostile_bodies import CHAT, HostileBody
from tests.faults.hostile_requests import any_request, chains, drawn
from tests.faults.hunting import Answer, Latency, Target, hunted, latency, minimised, too_late, wrong
from tests.faults.watched import Waited
from tests.grammar.test_limits import ARRAYS, DOUBLING, PIGEONS, doubling
from tests.live.served_model import serving, write_model

FLAGS = ("--no-cpu-pack-cache", "--threads", "1", "--kv-cache-size-mib", "16")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    model = write_model(tmp_path_factory.mktemp("hunted"))
    with serving(model, *FLAGS) as (url, pid), hunted(url, pid) as found:
        time.sleep(1)
        yield found


def answered(schema: Any, **more: Any) -> HostileBody:
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "response_format": answer}
    return HostileBody("seen", CHAT, json.dumps(body | more).encode())


def regex(number: int) -> HostileBody:
    letters = "hebjgpclmn"[number:] + "hebjgpclmn"[:number]
    return answered({"type": "string", "pattern": "".join(f"(?=.*{c}.*[{c}x]{{{9 + number % 3}}})" for c in letters)})


KEYS = [f"k{i}" for i in range(100)]
SEEN = {
    "40 levels of two items": answered(doubling(40, DOUBLING["two items"])),
    "40 levels of two members": answered(doubling(40, DOUBLING["two members"])),
    "three arrays of a thousand": answered({"type": "array", "minItems": 1000, "items": ARRAYS}),
    "11 negations over 10 names": answered({"type": "object", "allOf": PIGEONS}),
}
SERVED = {
    "a union of 200 by type": answered(
        {"anyOf": [{"type": "object", "properties": {"type": {"const": k}, k: {"type": "string"}},
                    "required": ["type", k], "additionalProperties": False} for k in KEYS * 2]}
    ),
    "one of 100 keys": answered(
        {"type": "object", "additionalProperties": False, "properties": dict.fromkeys(KEYS, True),
         "oneOf": [{"required": [k]} for k in KEYS]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_what_once_held_the_server_is_answered_at_once(target: Target, name: str) -> None:
    assert not target.one(SEEN[name])
    assert not target.one(answered({"type": "object", "properties": {"a": {"type": "integer"}}}))


@pytest.mark.parametrize("name", SERVED)
def test_what_peers_serve_is_served(target: Target, name: str) -> None:
    before = target.answers["200"]
    assert not target.one(SERVED[name])
    assert target.answers["200"] == before + 1


@pytest.mark.parametrize("n", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_regexes_of_ten_lookaheads_at_once(target: Target, n: int) -> None:
    target.polite.take()
    assert not target.crowd([regex(i) for i in range(n)], n)
    time.sleep(0.5)
    chats = target.polite.take()
    assert chats and max(chat.first_s for chat in chats) < 5, "it was 49 s"


@pytest.mark.parametrize("n", [30, pytest.param(1200, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_small_schemas_leave_no_memory(target: Target, n: int) -> None:
    def own(i: int) -> HostileBody:
        return answered({"type": "object", "properties": {f"n{i}": {"type": "string"}}, "required": [f"n{i}"]})

    assert not target.crowd([own(i) for i in range(n)], 4)


def test_a_chain_of_responses(target: Target) -> None:
    assert not target.one(drawn(0, 1, chains(40))[0])


@pytest.mark.timeout(300)
def test_a_short_hunt(target: Target) -> None:
    bodies = drawn(1, 10, any_request(0.02))
    assert len(bodies) > 4 and drawn(1, 10, any_request(0.02)) == bodies
    found = [fault for body in bodies for fault in target.one(body)]
    assert not found, found


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_long_hunt(tmp_path: Path) -> None:
    """Without the latency, which a machine that does other things can't tell."""
    for number in range(20):
        with serving(write_model(tmp_path), *FLAGS) as (url, pid), hunted(url, pid) as target:
            found = [f for body in drawn(number, 8, any_request()) for f in target.one(body)]
            assert not found, (number, found)


# --- the harness --------------------------------------------------------------------------------


def test_what_is_late() -> None:
    base = latency([Waited(False, 0.1, 10.0), Waited(True, 0.4, 0.0)])
    assert base == Latency(0.1, 0.4, 10.0, 2)
    assert too_late(Latency(0.25, 0.6, 8.0, 2), base) == ""
    assert "a first token after 0.26 s (bound 0.25 s)" in too_late(Latency(0.26, 0.1, 9.0, 2), base)
    assert "constrained first token" in too_late(Latency(0.1, 0.61, 9.0, 2), base)
    assert "7.9 tokens/s instead of 10.0" in too_late(Latency(0.1, 0.1, 7.9, 2), base)


def test_what_is_wrong() -> None:
    assert wrong(Answer(500, "{}", 0)) and wrong(Answer(503, "{}", 0)) and wrong(Answer(400, "x" * 30_000, 0))
    assert not wrong(Answer(503, "{}", 0, "1")) and not wrong(Answer(400, '{"error": {}}', 0))


def test_an_input_is_made_smaller() -> None:
    body = HostileBody("k", CHAT, json.dumps({"a": [*range(40)], "b": {"c": "bad", "d": 1}}).encode())
    found = minimised(body, lambda candidate: b"bad" in candidate.data)
    assert json.loads(found.data) == {"b": {"c": "bad"}}
