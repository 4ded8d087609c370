"""A call that the reply's end cuts is handed over as it was written: never completed, and never said to be a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.core import CallArgs, CallEnd, CallStart, Finish, FinishReason, OutputEvent, Usage, pack_ids
from imp_server.dialects.base import ReplyContext

from tests.dialects.contract_check import check_frames, check_reply, checked
from tests.dialects.replies import DIALECTS, USER, run
from tests.dialects.test_every_cut import cut, play
from tests.dialects.test_tool_matrix import HERMES_SIDE, XML_SIDE, body_of, ending, xml_call
from tests.live.toy_server import TOOLS_CHATML, call_text
from tests.text.tools.own_way import own_way
from tests.text.tools.spelled import FORMATS, chat, ids_of, spelling
from tests.text.tools.test_triggers import model_of
from tests.toy import byte_model

ARGUMENTS = {"cmd": "rm a/old", "n": 12, "more": [1]}
TOOL = spelling("first", ARGUMENTS)
ENDS: tuple[FinishReason, ...] = ("length", "stop", "cancelled")


def told(events: Sequence[OutputEvent]) -> tuple[list[str], str, list[bool]]:
    """Names, arguments, and for each call that ended whether it was cut."""
    names = [e.name for e in events if isinstance(e, CallStart)]
    arguments = "".join(e.text for e in events if isinstance(e, CallArgs))
    return names, arguments, [e.is_cut for e in events if isinstance(e, CallEnd)]


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_wherever_a_reply_ends_in_a_call_it_is_whole_or_cut(form: str, as_tokens: bool) -> None:
    model = model_of(form, "none", as_tokens)
    ids = ids_of(model, own_way(form, model.tokenizer.marked, "first", ARGUMENTS))
    session = model.prepare_chat(chat([TOOL]), 1).session
    names, whole, cuts = told(session.push(0, pack_ids(ids)) + session.finish(0, "stop", Usage()))
    assert names == ["first"] and json.loads(whole) == ARGUMENTS and cuts == [False]
    seen = set()
    for choice in range(1, len(ids)):
        reason = ENDS[choice % 3]
        events = session.push(choice, pack_ids(ids[:choice])) + session.finish(choice, reason, Usage())
        names, arguments, cuts = told(events)
        finish = events[-1]
        assert isinstance(finish, Finish) and whole.startswith(arguments)
        assert len(cuts) == len(names) <= 1
        if cuts == [False]:
            assert arguments == whole and finish.detail is None
            assert finish.reason == ("tool_calls" if reason == "stop" else reason)
        else:
            assert finish.reason == reason
            assert finish.detail == "call_cut" or not names
        seen.add((bool(names), *cuts))
    assert {(False,), (True, True)} <= seen


PREFIX = '{"cmd": "rm -rf build/old", '
"""What json.loads would take, once it were closed, for a call that removes far more."""


def cut_calls(name: str, reply: dict[str, Any]) -> list[str]:
    """The arguments of every call in the reply, as text."""
    if name == "chat":
        return [c["function"]["arguments"] for c in reply["choices"][0]["message"].get("tool_calls", [])]
    if name == "responses":
        return [item["arguments"] for item in reply["output"] if item["type"] == "function_call"]
    return [json.dumps(block["input"]) for block in reply["content"] if block["type"] == "tool_use"]


def detail(name: str, reply: dict[str, Any]) -> Any:
    return (reply["choices"][0] if name == "chat" else reply).get("imp_finish_detail")


HEAD = '<tool_call>\n{"name": "run", "arguments": '
AT_A_LIMIT = {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}
ELSE = {"chat": "stop", "responses": "completed", "messages": "end_turn"}


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("written", ["", "{", '{"cmd"', PREFIX, PREFIX[:-2], '{"cmd": "rm -rf build'])
@pytest.mark.parametrize("by_limit", [True, False])
def test_the_reply_holds_what_was_written(name: str, written: str, by_limit: bool) -> None:
    before = call_text("clock") + "\n"
    data = (before + HEAD + written).encode()
    ids = list(data) if by_limit else [*data, 256]
    body = body_of(name, "auto") | {DIALECTS[name].limit: len(data) if by_limit else 400}
    reply = run(name, HERMES_SIDE, body, ids, {9, 60, len(before) + 5})
    calls = cut_calls(name, reply)
    assert calls == (["{}"] if name == "messages" else ["{}", written])
    assert ending(name, reply) == (AT_A_LIMIT if by_limit else ELSE)[name]
    assert detail(name, reply) == "call_cut"
    if name == "responses":
        assert [item["status"] for item in reply["output"]] == ["completed", "incomplete"]


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("n_written", range(1, len('<tool_call>\n{"name": "run"')))
def test_before_its_name_is_whole_there_is_no_call(name: str, n_written: int) -> None:
    data = HEAD.encode()[:n_written]
    required = body_of(name, "required") | {DIALECTS[name].limit: n_written}
    reply = run(name, HERMES_SIDE, required, data, set())
    assert cut_calls(name, reply) == [] and detail(name, reply) == "call_cut"
    assert ending(name, reply) == AT_A_LIMIT[name] and "<" not in json.dumps(reply.get("output", reply.get("content")))


@pytest.mark.parametrize("name", list(DIALECTS))
def test_a_whole_call_at_the_limit_is_a_call(name: str) -> None:
    data = call_text("run", code="x").encode()
    reply = run(name, HERMES_SIDE, body_of(name, "auto") | {DIALECTS[name].limit: len(data)}, data, {4})
    assert [json.loads(text) for text in cut_calls(name, reply)] == [{"code": "x"}]
    assert (ending(name, reply), detail(name, reply)) == (AT_A_LIMIT[name], None)


@pytest.mark.parametrize("name", list(DIALECTS))
def test_arguments_that_were_closed_before_they_were_whole_are_no_call(name: str) -> None:
    for arguments in ('{"code": [1', '{"code": 1,}', '"{\\"code\\": \\"rm -rf build"', "[1]", "5"):
        data = f'<tool_call>{{"name": "run", "arguments": {arguments}}}</tool_call> Done.'.encode()
        reply = run(name, HERMES_SIDE, body_of(name, "auto"), data, {30})
        assert (ending(name, reply), detail(name, reply)) == (ELSE[name], "call_cut"), arguments
        assert len(cut_calls(name, reply)) == (name != "messages")


@pytest.mark.parametrize("name", list(DIALECTS))
def test_raw_text_is_cut_inside_its_string(name: str) -> None:
    data = xml_call("rm -rf build/old").encode()
    end = data.index(b"/old")
    reply = run(name, XML_SIDE, body_of(name, "auto") | {DIALECTS[name].limit: end}, data, {12})
    assert cut_calls(name, reply) == ([] if name == "messages" else ['{"code": "rm -rf build'])
    assert (ending(name, reply), detail(name, reply)) == (AT_A_LIMIT[name], "call_cut")


@pytest.mark.parametrize("name", ["chat", "responses"])
@pytest.mark.parametrize(
    ("written", "text"), [('{"inp', ""), ('{"input": "a\\n', "a\n"), ('{"input": "a\\u00', "a"), ("{", "")]
)
def test_the_text_of_a_free_form_tool_is_cut_where_it_was(name: str, written: str, text: str) -> None:
    tool: dict[str, Any] = {"name": "patch"}
    entry = {"type": "custom", "custom": tool} if name == "chat" else {"type": "custom", **tool}
    data = f'<tool_call>{{"name": "patch", "arguments": {written}'.encode()
    dialect = DIALECTS[name]
    body = checked(dialect.operation, {"model": "toy", **dialect.body, "tools": [entry], dialect.limit: len(data)})
    events = asyncio.run(play(HERMES_SIDE.prepare_chat(dialect.parse(body)), cut(data, {7, 50})))
    context = ReplyContext(f"{dialect.prefix}1", "toy", 7, "req_1", body)
    fold, stream = dialect.fold(context), dialect.stream(context)
    frames = stream.open()
    for event in events:
        fold.feed(event)
        frames += stream.feed(event)
    check_reply(dialect.operation, reply := fold.body())
    check_frames(dialect.operation, frames)
    sent = [json.loads(frame.data) for frame in frames]
    if name == "responses":
        [item] = reply["output"]
        assert (item["input"], item["status"]) == (text, "incomplete")
        assert [e["item"]["input"] for e in sent if e["type"] == "response.output_item.done"] == [text]
        deltas = [e["delta"] for e in sent if e["type"] == "response.custom_tool_call_input.delta"]
    else:
        [call] = reply["choices"][0]["message"]["tool_calls"]
        assert call["custom"]["input"] == text
        deltas = [c["custom"]["input"] for e in sent for c in e["choices"][0]["delta"].get("tool_calls", [])]
    assert "".join(deltas) == text


MAPPING = TOOLS_CHATML.replace(
    "{{ call.function | tojson }}",
    "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}{% endfor %}",
)


@pytest.mark.parametrize("template", [TOOLS_CHATML, MAPPING])
@pytest.mark.parametrize("name", ["chat", "responses"])
@pytest.mark.parametrize("arguments", [PREFIX, "", "[1]"])
def test_a_conversation_goes_on_behind_a_cut_call(template: str, name: str, arguments: str) -> None:
    side = ModelTextSide(byte_model(template, context_length=4096))
    again: list[Any] = [{"role": "user", "content": "Go on."}]
    if name == "chat":
        call = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": arguments}}
        turns = {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}, *again]}
    else:
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "run", "status": "incomplete"}
        turns = {"input": [*USER, item | {"arguments": arguments}, *again]}
    body = body_of(name, "auto") | turns
    prompt = side.render(DIALECTS[name].parse(checked(DIALECTS[name].operation, body)))
    assert "Go on." in prompt and arguments.removesuffix(", ").replace('"', "") in prompt.replace("\\", "").replace(
        '"', ""
    )
