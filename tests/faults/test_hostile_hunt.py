"""A short hunt for requests that hold a server; in full it is analysis/hostile_hunt.py.

What has held a server once, and the test that keeps it from doing so again:

| seen | test |
|---|---|
| 40 levels that refer to the next twice never end | test_what_once_held_the_server_is_answered_at_once |
| the same, and SIGTERM takes 62 s | live/test_end_in_time.py: test_stuck_threads |
| 17 clients leave, work goes on | live/test_abandoned_checks.py: test_seventeen_clients_leave_and_nothing_runs_on |
| three nested arrays of a thousand take 3.8 GB | test_what_once_held_the_server_is_answered_at_once |
| four levels of them | grammar/test_limits.py: test_a_value_that_nobody_can_write_is_refused_for_its_size |
| `not`s over ten names hold both threads of the pool | test_three_at_once_hold_up_nobody |
| regexes of ten lookaheads hold up a chat for 49 s | test_regexes_of_ten_lookaheads_at_once |
| six levels of `oneOf` keep 450 MB and are refused | test_what_peers_serve_is_served |
| a union of 22 objects, a `oneOf` of 18 keys: too much work | test_what_peers_serve_is_served |
| real schemas take seconds | grammar/test_store.py: test_a_sample_of_real_schemas |
| 1,200 small schemas are kept for ever | test_small_schemas_leave_no_memory |
| and 5,000 | grammar/test_generations.py: test_five_thousand_schemas_end_where_five_hundred_stood |
| twenty tools are checked with each turn | live/test_abandoned_checks.py: test_a_schema_is_checked_once |
| a million parts take 17 s | api/test_hostile_bodies.py: test_a_million_parts_are_counted_before_they_are_made |
| and 660 MB of them stay | api/test_hostile_bodies.py: test_large_bodies_leave_no_memory_behind |
| templates that double block both threads | text/test_hostile_templates.py: test_each_kind_is_refused_at_once |
| those of model files | live/test_hostile_model.py: test_other_routes_live_while_templates_are_stuck |
| and tokenisers | test_a_model_made_to_hurt |
| silent connections stay | api/test_http_protocol.py: test_a_silent_connection_is_closed |
| slow heads stay | api/test_http_protocol.py: test_a_slow_head_is_answered_with_408 |
| slow bodies stay | api/test_http_protocol.py: test_a_body_must_come_at_a_rate |
| 256 descriptors | api/test_http_protocol.py: test_health_answers_in_a_flood_near_the_descriptor_limit |
| stalled bodies of 50 MiB hold 930 MB | api/test_admission.py: test_bodies_being_received_count |
| 128 prompts of 8 choices: others wait 3 s and more | test_many_prompts_of_one_client_hold_up_nobody |
| half of the tokens/s is left | perf/test_hostile_neighbours.py: test_a_client_beside_hostile_ones_is_served |
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.hostile_bodies import CHAT, COMPLETIONS, HostileBody
from tests.faults.hostile_models import HostileModel, faults, hostile_models
from tests.faults.hostile_requests import any_request, chains, drawn
from tests.faults.hunting import Answer, Latency, Target, hunted, latency, minimised, too_late, wrong
from tests.faults.watched import Waited
from tests.grammar.test_limits import ARRAYS, DOUBLING, PIGEONS, doubling
from tests.grammar.test_unions import deep
from tests.live.served_model import serving, write_model
from tests.text.hostile_templates import TOKENIZERS

TESTS, HERE = Path(__file__).resolve().parents[1], "faults/test_hostile_hunt.py"
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
    "six levels of oneOf": answered(deep(6)),
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


def test_the_table_names_tests() -> None:
    rows = re.findall(r"\| (?:(\S+\.py): )?(test_\w+) \|$", __doc__ or "", re.MULTILINE)
    assert len(rows) == 25
    assert not [row for row in rows if f"\ndef {row[1]}(" not in (TESTS / (row[0] or HERE)).read_text()]


def test_three_at_once_hold_up_nobody(target: Target) -> None:
    """Each with names of its own, so that no verdict is known."""
    target.polite.take()
    assert not target.crowd([pigeons(f"p{i}") for i in range(3)], 3)
    time.sleep(0.5)
    chats = target.polite.take()
    assert chats and max(chat.first_s for chat in chats) < 5, "nobody got a reply"


def pigeons(own: str) -> HostileBody:
    names = [{"not": {"properties": {f"{own}{i}": {"not": {"const": j}} for i in range(10)}}} for j in range(11)]
    return answered({"type": "object", "allOf": names})


@pytest.mark.parametrize("n", [16, pytest.param(128, marks=pytest.mark.slow)])
def test_many_prompts_of_one_client_hold_up_nobody(target: Target, n: int) -> None:
    body = {"model": "m", "prompt": [f"Go on: {i}" for i in range(n)], "n": 8, "max_tokens": 400, "ignore_eos": True}
    target.polite.take()
    over = threading.Event()

    def flood() -> None:
        with (
            httpx.Client(base_url=target.url, timeout=60) as http,
            http.stream("POST", COMPLETIONS, json=body | {"stream": True}) as reply,
        ):
            for _ in reply.iter_lines():
                if over.is_set():
                    return

    thread = threading.Thread(target=flood)
    thread.start()
    time.sleep(3)
    over.set()
    thread.join()
    chats = target.polite.take()
    with httpx.Client(base_url=target.url, timeout=60) as http:
        told = http.get("/metrics").text
    assert float(re.findall(r"^imp_preemptions_total\S* (\S+)$", told, re.MULTILINE)[0]) > 0
    assert chats and max(chat.first_s for chat in chats) < 2, "rows were first come, first served"


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


@pytest.mark.parametrize(
    "model",
    [
        HostileModel(template="{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}"),
        HostileModel(tokenizer=json.dumps(TOKENIZERS[0])),
    ],
    ids=["template", "tokenizer"],
)
@pytest.mark.timeout(200)
@pytest.mark.slow
def test_a_model_made_to_hurt(tmp_path: Path, model: HostileModel) -> None:
    assert not faults(model, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_models_made_to_hurt(tmp_path: Path) -> None:
    for number, model in enumerate(drawn(1, 12, hostile_models())):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert not faults(model, folder), model


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
