"""Pins, sessions and usage of the prefix cache over HTTP, in every dialect, on a pool small enough to need them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from imp_server.backends import choose

from tests.live.served_model import Json, Reuse, Served, flood, reuse, served, write_model

pytestmark = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built")
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
N_BLOCKS = 80
"""The budget of pins, 25 %, is 20 blocks: 320 tokens."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Served]:
    with served(model, "--set", f"kv_cache.max_blocks={N_BLOCKS}") as found:
        yield found


def text(topic: str, n_words: int = 20) -> str:
    """A text that begins like no other topic's, about eight tokens a word."""
    return " ".join(f"{topic}{i % 10}" for i in range(n_words))


def pinned_blocks(server: Served) -> float:
    return server.metrics()["imp_prefix_cache_pinned_blocks"]


def under_pressure(server: Served, ask: Callable[[], Json]) -> Reuse:
    """What the second of two equal requests finds in the cache after others have used more than the whole pool."""
    ask()
    flood(server, range(100, 104), 900)
    return reuse(ask())


def chat(server: Served, content: str, **more: Any) -> Json:
    return server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 2} | more
    )


def message(server: Served, content: Any, **more: Any) -> Json:
    return server.post("/v1/messages", {"messages": [{"role": "user", "content": content}], "max_tokens": 2} | more)


def block(content: str, **more: Any) -> Json:
    return {"type": "text", "text": content} | more


# --- usage -------------------------------------------------------------------------------------------


def test_every_dialect_tells_what_was_cached(server: Served) -> None:
    long = text("usage")
    asks: list[Callable[[str], Json]] = [
        lambda name: chat(server, name + long),
        lambda name: server.post("/v1/completions", {"prompt": name + long, "max_tokens": 2}),
        lambda name: server.post("/v1/responses", {"input": name + long, "max_output_tokens": 16}),
        lambda name: message(server, [block(name + long, **MARK)]),
        lambda name: server.post("/completion", {"prompt": name + long, "n_predict": 2}),
    ]
    for number, ask in enumerate(asks):
        first, second = (reuse(ask(f"{number}")) for _ in range(2))
        assert first.prompt == second.prompt > 60
        assert first.cached < 20 and first.cached + first.written >= first.prompt - 14, "but for what follows a mark"
        assert (second.cached, second.written) in [(second.prompt - 1, 1), (second.prompt - 1, 0)]


def test_messages_count_what_was_written_only_up_to_the_mark(server: Served) -> None:
    asked = {"system": [block(text("bound"), **HOUR), block(text("loose"))]}
    usage = message(server, "q", **asked)["usage"]
    counted = server.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "q"}]} | asked)[
        "input_tokens"
    ]
    written, rest = usage["cache_creation_input_tokens"], usage["input_tokens"]
    assert written + rest + usage["cache_read_input_tokens"] == counted
    assert abs(written - rest) < 40, "one of two equal blocks was marked"
    assert message(server, text("nothing marked"))["usage"]["cache_creation_input_tokens"] == 0


def test_timings_are_those_of_the_usage(server: Served) -> None:
    body: dict[str, Any]
    for streamed in (False, True):
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text("timed")}]}),
            ("/v1/completions", {"prompt": text("timed")}),
        ):
            body |= {"model": "m", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": streamed}
            body |= {"stream_options": {"include_usage": True}} if streamed else {}
            sent = server.raw(path, body)
            events = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
            last = events[-1] if streamed else json.loads(sent)
            assert not any("timings" in event for event in events[:-1])
            timings, usage = last["timings"], last["usage"]
            assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
            assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
            assert timings["predicted_n"] == usage["completion_tokens"] == 3
            assert timings["prompt_ms"] > 0 and timings["predicted_per_second"] > 0


def test_timings_of_messages_and_responses_are_those_of_the_usage(server: Served) -> None:
    asked = {"messages": [{"role": "user", "content": text("timed too")}], "max_tokens": 16, "ignore_eos": True}
    whole = server.post("/v1/messages", asked)
    end = events_of(server, "/v1/messages", asked)[-2]
    for reply in (whole, end):
        timings, usage = reply["timings"], reply["usage"]
        assert timings["cache_n"] == usage["cache_read_input_tokens"]
        assert timings["cache_n"] + timings["prompt_n"] == usage["cache_read_input_tokens"] + usage["input_tokens"]
        assert timings["predicted_n"] == usage["output_tokens"] == 16 and timings["predicted_per_second"] > 0
    asked = {"input": text("timed too"), "max_output_tokens": 16, "ignore_eos": True}
    whole = server.post("/v1/responses", asked)
    end = events_of(server, "/v1/responses", asked)[-1]["response"]
    for reply in (whole, end):
        timings, usage = reply["timings"], reply["usage"]
        assert timings["cache_n"] == usage["input_tokens_details"]["cached_tokens"]
        assert timings["cache_n"] + timings["prompt_n"] == usage["input_tokens"]
        assert timings["predicted_n"] == usage["output_tokens"] == 16 and timings["predicted_per_second"] > 0


def test_message_start_has_the_counts_of_the_end(server: Served) -> None:
    asked = {"messages": [{"role": "user", "content": [block(text("started"), **MARK)]}], "max_tokens": 2}
    told = []
    for _ in range(2):
        first, *_rest, end, _stop = events_of(server, "/v1/messages", asked)
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        counts = [first["message"]["usage"][name] for name in names]
        assert counts == [end["usage"][name] for name in names]
        assert first["message"]["usage"]["cache_creation"]["ephemeral_5m_input_tokens"] == counts[2]
        told.append(counts)
    (_, _, written), (rest, read, again) = told
    assert written > 60 and (rest + again, read) == (1, sum(told[0]) - 1)


def events_of(server: Served, path: str, body: Json) -> list[Json]:
    lines = server.raw(path, {"model": "m", "stream": True} | body).splitlines()
    return [event for line in lines if line.startswith("data: {") and (event := json.loads(line[6:]))["type"] != "ping"]


def test_evictions_are_told_to_whoever_caused_them(server: Served) -> None:
    asks: list[Callable[[str], int]] = [
        lambda topic: chat(server, text(topic, 60))["usage"]["prompt_tokens_details"]["evicted_tokens"],
        lambda topic: message(server, text(topic, 60))["usage"]["evicted_tokens"],
        lambda topic: server.post("/v1/responses", {"input": text(topic, 60), "max_output_tokens": 16})["usage"][
            "input_tokens_details"
        ]["evicted_tokens"],
    ]
    for number, ask in enumerate(asks):
        flood(server, range(200 + 10 * number, 203 + 10 * number), 900)
        before = server.metrics()["imp_prefix_cache_evicted_tokens_total"]
        told = ask(f"evicting{number}")
        assert told == server.metrics()["imp_prefix_cache_evicted_tokens_total"] - before > 100


# --- pins --------------------------------------------------------------------------------------------


def test_what_nobody_pinned_is_gone(server: Served) -> None:
    assert under_pressure(server, lambda: chat(server, text("loose"))).cached < 10


@pytest.mark.parametrize("route", ["chat", "completions", "responses", "messages"])
def test_cache_prompt_pins(server: Served, route: str) -> None:
    long = text(f"pin{route}")
    ask: dict[str, Callable[[], Json]] = {
        "chat": lambda: chat(server, long, cache_prompt=True),
        "completions": lambda: server.post("/v1/completions", {"prompt": long, "max_tokens": 2, "cache_prompt": True}),
        "responses": lambda: server.post(
            "/v1/responses", {"input": long, "max_output_tokens": 16, "cache_prompt": True}
        ),
        "messages": lambda: message(server, long, cache_prompt=True),
    }
    found = under_pressure(server, ask[route])
    assert found.cached >= found.prompt // 16 * 16 - 16


@pytest.mark.parametrize("mark", [MARK, HOUR, {"cache_control": {"type": "ephemeral", "ttl": "5m", "scope": "x"}}])
def test_a_marked_system_block_is_pinned_up_to_its_end(server: Served, mark: Json) -> None:
    system = [block(text(f"sys{len(str(mark))}"), **mark), block(text("unpinned"))]
    found = under_pressure(server, lambda: message(server, text("question"), system=system))
    n_system = reuse(message(server, "", system=system[:1])).prompt
    assert n_system - 40 < found.cached < n_system + 16, "whole blocks of 16 tokens, of the marked text alone"


def test_the_last_mark_bounds_the_pin_and_later_turns_find_it(server: Served) -> None:
    turns: list[Json] = [
        {"role": "user", "content": [block(text("turn1", 10), **MARK)]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": [block(text("turn2", 10), **MARK), block("later")]},
    ]

    def ask() -> Json:
        return server.post("/v1/messages", {"messages": turns, "max_tokens": 2})

    found = under_pressure(server, ask)
    assert found.cached > found.prompt - 50


def test_a_mark_on_tools_pins_the_whole_prompt(server: Served) -> None:
    tool = {"name": "look_up", "input_schema": {"type": "object", "properties": {}}} | MARK
    found = under_pressure(
        server, lambda: message(server, text("tooled", 20), tools=[tool], tool_choice={"type": "none"})
    )
    assert found.cached == N_BLOCKS // 4 * 16, "the conversation, too, as far as the budget goes"


def test_the_billing_header_may_change(server: Served) -> None:
    def ask(digest: str) -> Reuse:
        header = f"x-anthropic-billing-header: cc_version=2.1.37.{digest[:3]}; cc_entrypoint=cli; cch={digest};"
        system = [block(header), block(text("claude"), **MARK)]
        return reuse(message(server, "hi", system=system))

    ask("00a1b")
    found = ask("fe772")
    assert found.cached == found.prompt - 1
    as_text = {"system": "x-anthropic-billing-header: cc_version=2; cch=12345;\n" + text("plain")}
    message(server, "hi", **as_text)
    as_text["system"] = as_text["system"].replace("12345", "abcde")
    found = reuse(message(server, "hi", **as_text))
    assert found.cached == found.prompt - 1


def test_the_oldest_pin_goes_first_and_the_budget_holds(server: Served) -> None:
    texts = [text(f"fifo{letter}", 24) for letter in "abcd"]
    for each in texts:
        chat(server, each, cache_prompt=True)
        assert 0 < pinned_blocks(server) <= N_BLOCKS // 4
    flood(server, range(300, 304), 900)
    cached = [reuse(chat(server, each)).cached for each in reversed(texts)]
    assert cached[0] > 100, "the newest is kept"
    assert cached[-1] < 16, "the oldest had to go: four don't fit the budget"


# --- sessions ----------------------------------------------------------------------------------------


def test_a_session_holds_its_last_turn_until_it_is_closed(server: Served) -> None:
    turns = [{"role": "user", "content": text("session", 30)}]
    body = {"messages": turns, "max_tokens": 8, "session_id": "chat:1"}
    first = server.post("/v1/chat/completions", body)
    turns += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    flood(server, range(400, 404), 900)
    second = server.post("/v1/chat/completions", body)
    used = first["usage"]
    assert reuse(second).cached > used["prompt_tokens"] - 16, "the session's first turn was pinned"
    told = server.metrics()
    assert told["imp_kv_sessions"] == 1 and told["imp_kv_session_pinned_blocks"] >= used["prompt_tokens"] // 16
    closed = server.post("/v1/sessions/chat:1/close")
    assert closed == {"id": "chat:1", "object": "session", "closed": True, "released_blocks": closed["released_blocks"]}
    assert closed["released_blocks"] >= used["prompt_tokens"] // 16
    assert server.post("/v1/sessions/chat:1/close")["released_blocks"] == 0
    flood(server, range(404, 408), 900)
    assert reuse(server.post("/v1/chat/completions", body | {"session_id": None})).cached < 16


@pytest.mark.parametrize("route", ["chat", "completions", "responses", "messages", "native"])
def test_every_route_has_sessions(server: Served, route: str) -> None:
    long, session = text(f"held{route}"), {"session_id": f"of.{route}"}
    ask: dict[str, Callable[[], Json]] = {
        "chat": lambda: chat(server, long, **session),
        "completions": lambda: server.post("/v1/completions", {"prompt": long, "max_tokens": 2} | session),
        "responses": lambda: server.post("/v1/responses", {"input": long, "max_output_tokens": 16} | session),
        "messages": lambda: message(server, long, **session),
        "native": lambda: server.post("/completion", {"prompt": long, "n_predict": 2} | session),
    }
    found = under_pressure(server, ask[route])
    assert found.cached >= found.prompt // 16 * 16 - 16
    assert server.post(f"/v1/sessions/of.{route}/close")["released_blocks"] >= found.prompt // 16


def test_bad_session_ids_are_refused_everywhere(server: Served) -> None:
    turns = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for path, body in (
        ("/v1/chat/completions", turns),
        ("/v1/messages", turns),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
    ):
        for bad in ("a b", "x" * 129, ""):
            assert "session_id" in server.post(path, body | {"session_id": bad}, status=400)["error"]["message"]
    for bad in ("a%20b", "x" * 129):
        assert "session_id" in server.post(f"/v1/sessions/{bad}/close", status=400)["error"]["message"]


def test_an_idle_session_ends_by_itself(model: Path) -> None:
    options = ["--set", "prefix_cache.session_ttl_s=0.5", "--set", f"kv_cache.max_blocks={N_BLOCKS}"]
    with served(model, *options) as server:
        chat(server, text("idle"), session_id="idle")
        assert pinned_blocks(server) > 0
        time.sleep(0.6)
        chat(server, "another request is when idle sessions are looked at")
        assert pinned_blocks(server) == 0


def test_a_budget_of_nothing_pins_nothing(model: Path) -> None:
    with served(model, "--set", "server.prefix_pin_budget_pct=0", "--set", f"kv_cache.max_blocks={N_BLOCKS}") as server:
        assert under_pressure(server, lambda: chat(server, text("none"), cache_prompt=True)).cached < 10
        assert pinned_blocks(server) == 0
