"""Ids of calls over a whole conversation: unique when new, kept when old, and each result at its own call."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imp_server.core import CallStart, ChatRequest, Message, TextPart, Tool, ToolCall
from imp_server.text.call_ids import SHORT_ID, settled, short_id, unique_id
from imp_server.text.tools import kimi

from tests.text.tools.spelled import calls_in, events_of, model_of
from tests.toy import CHATML, byte_model

TOOLS = [Tool(name, parameters={"type": "object", "properties": {"x": {"type": "integer"}}}) for name in ("a", "b")]


def asks(*calls: tuple[str, str]) -> Message:
    return Message("assistant", tool_calls=tuple(ToolCall(i, name, "{}") for i, name in calls))


def tells(call_id: str, text: str) -> Message:
    return Message("tool", (TextPart(text),), tool_call_id=call_id)


def user(text: str = "hi") -> Message:
    return Message("user", (TextPart(text),))


def shown(messages: Sequence[Message]) -> list[tuple[str, ...]]:
    """Ids and names of calls, id, name and text of results."""
    out: list[tuple[str, ...]] = []
    for message in messages:
        out += [(call.id, call.name) for call in message.tool_calls]
        if message.role == "tool":
            [part] = message.parts
            assert isinstance(part, TextPart)
            out.append((message.tool_call_id or "", message.name or "", part.text))
    return out


REPEATED = [user(), asks(("functions.a:0", "a")), tells("functions.a:0", "one"), user(),
            asks(("functions.a:0", "a"), ("functions.b:1", "b")), tells("functions.b:1", "three"),
            tells("functions.a:0", "two")]  # fmt: skip


def test_results_go_to_their_calls_though_ids_repeat_and_results_come_in_another_order() -> None:
    assert shown(settled(REPEATED, kimi.spell_id)) == [
        ("functions.a:0", "a"), ("functions.a:0", "a", "one"),
        ("functions.a:1", "a"), ("functions.b:1", "b"), ("functions.a:1", "a", "two"), ("functions.b:1", "b", "three"),
    ]  # fmt: skip
    assert [ids[0] for ids in shown(settled(REPEATED, None)) if len(ids) == 3] == [
        "functions.a:0", "functions.a:0", "functions.b:1"
    ]  # fmt: skip


def test_two_calls_of_a_turn_with_one_id_get_their_results_in_order() -> None:
    twice = [user(), asks(("x", "a"), ("x", "b")), tells("x", "one"), tells("x", "two")]
    assert shown(settled(twice, kimi.spell_id))[2:] == [
        ("functions.a:0", "a", "one"), ("functions.b:1", "b", "two")
    ]  # fmt: skip


def test_a_result_without_a_call_stays_where_it_is() -> None:
    lone = [user(), tells("nobody", "one"), asks(("x", "a")), tells("nobody", "two"), tells("x", "three")]
    assert [m[-1] for m in shown(settled(lone, None))] == ["one", "a", "three", "two"]
    assert settled([user(), tells("nobody", "one")], short_id)[1] == tells("nobody", "one")


def test_kimi_is_shown_names_in_ids_whoever_made_the_id() -> None:
    foreign = [user(), asks(("call_77", "a"), ("toolu_8", "b")), tells("toolu_8", "two"), tells("call_77", "one")]
    assert shown(settled(foreign, kimi.spell_id)) == [
        ("functions.a:0", "a"), ("functions.b:1", "b"), ("functions.a:0", "a", "one"), ("functions.b:1", "b", "two")
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["x", "functions.a:0", "abcdefghi", "call_1"]), st.sampled_from("ab"))))
def test_shown_ids_are_unique_and_depend_on_what_precedes_them_alone(calls: list[tuple[str, str]]) -> None:
    messages = [m for call in calls for m in (user(), asks(call), tells(call[0], "r"))]
    for spell in (kimi.spell_id, short_id):
        whole = settled(messages, spell)
        ids = [call.id for m in whole for call in m.tool_calls]
        assert len(set(ids)) == len(ids)
        assert [m.tool_call_id for m in whole if m.role == "tool"] == ids
        for end in range(len(messages)):
            assert settled(messages[:end], spell) == whole[:end]
    assert all(SHORT_ID.fullmatch(call.id) for m in settled(messages, short_id) for call in m.tool_calls)


def test_a_number_is_counted_on_until_it_is_free() -> None:
    assert unique_id("functions.a:0", {"functions.a:0", "functions.a:1"}) == "functions.a:2"
    assert unique_id("0", {"0"}) == "1" and unique_id("abc", {}) == "abc" and unique_id("abc", {"abc"}) is None


KIMI_CALL = b'<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>'
KIMI = b"<|tool_calls_section_begin|>" + KIMI_CALL + KIMI_CALL + b"<|tool_calls_section_end|>"


def test_kimis_ids_do_not_repeat_within_a_conversation() -> None:
    history = (user(), asks(("functions.a:0", "a")), tells("functions.a:0", "one"), user())
    for messages, expected in (
        ((user(),), ["functions.a:0", "functions.a:1"]),
        (history, ["functions.a:1", "functions.a:2"]),
    ):
        events = events_of("kimi", ChatRequest(messages, tools=tuple(TOOLS)), KIMI)
        assert len(calls_in(events)) == 2
        assert [e.id for e in events if isinstance(e, CallStart)] == expected


STRICT_IDS = CHATML.replace(
    "{% for message in messages %}",
    "{% for tool in tools or [] %}[TOOL_CALLS]{{ tool | tojson }}{% endfor %}{% for message in messages %}"
    "{% for call in message.tool_calls or [] %}{% if call.id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}"
    "[TOOL_CALLS]{{ call.id }}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "{% if message.role == 'tool' %}[RESULT {{ message.tool_call_id }}]{% endif %}",
)
"""Refuses other ids, as Mistral's do."""


@pytest.mark.parametrize("call_id", ["call_0123456789abcdef01234567", "toolu_x", "abcdefgh1", "ü"])
def test_templates_that_demand_short_ids_get_them(call_id: str) -> None:
    model = byte_model(STRICT_IDS)
    assert model.prompts.default.traits.short_ids and not model_of("hermes").prompts.default.traits.short_ids
    text = model.apply_template(ChatRequest((user(), asks((call_id, "a")), tells(call_id, "one")), tools=tuple(TOOLS)))
    [asked] = re.findall(r"\[TOOL_CALLS\]([A-Za-z0-9]{9})a", text)
    assert f"[RESULT {asked}]" in text and (asked == call_id) == (len(call_id) == 9)


def test_an_endless_id_takes_no_time() -> None:
    began = time.process_time()
    for long in ("1" * 100_000, "1" * 100_000 + "a", "9" * 50_000):
        found = unique_id(long, {long})
        assert found is None if long.endswith("a") else found not in (None, long)
    assert time.process_time() - began < 0.5
    assert unique_id("call_09", {"call_09"}) == "call_10" and unique_id("f007", {"f007"}) == "f8"
