"""Free-form tools: what the model writes as a function's arguments reaches the client as text, whole or streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import CallArgs, CallEnd, CallStart, Finish, InputGrammar, OutputEvent, Usage
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.free_form import InputReader, free_form_tool, wrapped
from imp_server.dialects.openai_chat.reply import ChatFold, ChatStream
from imp_server.dialects.openai_chat.request import chat_request
from imp_server.dialects.openai_responses.handlers import ResponseFold, ResponseStream, parse
from imp_server.dialects.openai_responses.tools import tool_table
from openai.types.chat import ChatCompletion, ChatCompletionMessageCustomToolCall

from tests.dialects.contract_check import check_frames, check_reply
from tests.dialects.event_lists import cut
from tests.dialects.sdk_streams import openai_client

PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}


@given(st.text(), st.booleans(), st.lists(st.integers(0, 99)))
def test_every_cut_of_the_arguments_gives_the_text(text: str, ascii_only: bool, at: list[int]) -> None:
    text = text.encode("utf-8", "replace").decode()
    reader = InputReader()
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    given_out = [reader.feed(piece) for piece in cut(arguments, at)]
    assert "".join(given_out) == text, "all of it before the end"
    assert reader.rest() == "" and reader.text == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\ud83d b"}', "a\ufffd b"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 3}', '{"input": 3}'),
        ('{"other": 1, "input": "late"}', "late"),
        ('{"input": "cut o', "cut o"),
        ("", ""),
        ("{}", ""),
    ],
)
def test_arguments_of_another_shape(arguments: str, text: str) -> None:
    reader = InputReader()
    assert "".join(map(reader.feed, arguments)) + reader.rest() == text == reader.text


def test_a_grammar_is_shown_to_the_model() -> None:
    flat = free_form_tool("p", PATCH | {"format": GRAMMAR}, "tools[3]")
    nested = free_form_tool("p", {"format": {"type": "grammar", "grammar": GRAMMAR}}, "tools[1].custom")
    assert flat.description == "Edits files.\n\nThe input must obey this lark grammar:\nstart: /.+/"
    assert nested.description.startswith("The input must obey this lark grammar")
    assert flat.parameters["required"] == ["input"]
    assert flat.input_grammar == InputGrammar("lark", "start: /.+/", "tools[3].format.definition")
    assert nested.input_grammar is not None
    assert nested.input_grammar.param == "tools[1].custom.format.grammar.definition"
    for form in ({"type": "text"}, None):
        free = free_form_tool("p", PATCH | {"format": form}, "tools[0]")
        assert free.description == "Edits files." and free.input_grammar is None


def events(text: str, at: list[int]) -> list[OutputEvent]:
    pieces = [CallArgs(0, 0, piece) for piece in cut(wrapped(text), at)]
    return [CallStart(0, 0, "call_imp_0", "apply_patch"), *pieces, CallEnd(0, 0), Finish(0, "tool_calls", Usage())]


def played(maker: Any, body: dict[str, Any], name: str, text: str, at: list[int]) -> Any:
    made = maker(ReplyContext(name, "toy", 7, "req_1", body, extra={"completed_at": 8}))
    frames = made.open() if hasattr(made, "open") else []
    for event in events(text, at):
        frames += made.feed(event) or []
    return made.body() if hasattr(made, "body") else frames + made.close()


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30)


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(0, 99), max_size=8))
def test_responses(text: str, at: list[int]) -> None:
    body = {"model": "toy", "input": "x", "tools": [PATCH | {"format": GRAMMAR}]}
    assert [tool.name for tool in parse(body).tools] == ["apply_patch"]
    whole = played(ResponseFold, body, "resp_1", text, [])
    check_reply("openai_responses.create_response", whole)
    call = whole["output"][0]
    assert (call["type"], call["input"], call["status"]) == ("custom_tool_call", text, "completed")
    assert whole["tools"] == body["tools"]
    frames = played(ResponseStream, body, "resp_1", text, at)
    check_frames("openai_responses.create_response", frames)
    told = [json.loads(frame.data) for frame in frames[:-1]]
    assert "".join(e["delta"] for e in told if e["type"] == "response.custom_tool_call_input.delta") == text
    assert [e["input"] for e in told if e["type"] == "response.custom_tool_call_input.done"] == [text]
    assert told[-1]["response"] == whole
    again = parse(body | {"input": [*whole["output"], {"type": "custom_tool_call_output", "output": "ok"} | ids(call)]})
    assert json.loads(again.messages[0].tool_calls[0].arguments) == {"input": text}
    assert again.messages[1].tool_call_id == call["call_id"]


def ids(call: dict[str, Any]) -> dict[str, Any]:
    return {"call_id": call["call_id"]}


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(0, 99), max_size=8))
def test_chat(text: str, at: list[int]) -> None:
    tool = {"type": "custom", "custom": {"name": "apply_patch"}}
    body: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    assert [tool.name for tool in chat_request(body).tools] == ["apply_patch"]
    whole = played(ChatFold, body, "chatcmpl-1", text, [])
    check_reply("openai_chat.create_chat_completion", whole)
    message = whole["choices"][0]["message"]
    call = {"id": "call_imp_0", "type": "custom", "custom": {"name": "apply_patch", "input": text}}
    assert message["tool_calls"] == [call]
    frames = played(ChatStream, body, "chatcmpl-1", text, at)
    check_frames("openai_chat.create_chat_completion", frames)
    deltas = [json.loads(frame.data)["choices"][0]["delta"] for frame in frames[:-1]]
    calls = [one for delta in deltas for one in delta.get("tool_calls", ())]
    assert calls[0] == {
        "index": 0,
        "id": "call_imp_0",
        "type": "custom",
        "custom": {"name": "apply_patch", "input": ""},
    }
    assert "".join(one["custom"]["input"] for one in calls) == text
    again = chat_request(body | {"messages": [*body["messages"], message]})
    assert json.loads(again.messages[1].tool_calls[0].arguments) == {"input": text}


def test_a_free_form_tool_can_be_forced() -> None:
    body: dict[str, Any] = {"model": "toy", "input": "x", "tools": [PATCH]}
    forced = parse(body | {"tool_choice": {"type": "custom", "name": "apply_patch"}}).tool_choice
    assert (forced.mode, forced.names, forced.named) == ("required", ("apply_patch",), True)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]}
    assert parse(body | {"tool_choice": allowed}).tool_choice.names == ("apply_patch",)
    chat = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}
    chat |= {"tools": [{"type": "custom", "custom": {"name": "p"}}]}
    named = {"type": "custom", "custom": {"name": "p"}}
    assert chat_request(chat | {"tool_choice": named}).tool_choice.names == ("p",)
    several = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert chat_request(chat | {"tool_choice": several}).tool_choice.names == ("p",)


def test_free_form_tools_inside_a_namespace() -> None:
    table = tool_table({"tools": [{"type": "namespace", "name": "fs", "tools": [PATCH]}]})
    assert table.free_form == {"apply_patch"} and table.wire_name("apply_patch") == ("apply_patch", "fs")


def test_a_grammar_is_named_by_its_place_among_all_tools() -> None:
    bound = PATCH | {"format": GRAMMAR}
    table = tool_table(
        {"tools": [{"type": "web_search"}, {"type": "namespace", "name": "fs", "tools": [{"type": "mcp"}, bound]}]}
    )
    grammar = table.tools[0].input_grammar
    assert grammar is not None and grammar.param == "tools[1].tools[1].format.definition"


def sdk_frames(text: str) -> tuple[dict[str, Any], list[Any]]:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": ".*"}}
    tool = {"type": "custom", "custom": {"name": "apply_patch", "format": form}}
    body: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    return body, played(ChatStream, body, "chatcmpl-1", text, [11, 14])


def test_the_sdk_types_whole_calls_but_not_their_chunks() -> None:
    """Its chunks know functions only: the default client hands custom calls on, the strict one refuses them."""
    body, frames = sdk_frames("a\nb")
    whole = played(ChatFold, body, "chatcmpl-1", "a\nb", [])
    strict = ChatCompletion.model_validate(whole)
    call: Any = (strict.choices[0].message.tool_calls or [])[0]
    assert isinstance(call, ChatCompletionMessageCustomToolCall) and call.custom.input == "a\nb"
    deltas = [
        delta
        for chunk in openai_client(frames, strict=False).chat.completions.create(**body, stream=True)
        for delta in chunk.choices[0].delta.tool_calls or ()
    ]
    assert [delta.type for delta in deltas] == ["custom", *[None] * (len(deltas) - 1)]
    assert "".join(delta.custom["input"] for delta in deltas) == "a\nb"
    with pytest.raises(openai.APIResponseValidationError):
        list(openai_client(frames).chat.completions.create(**body, stream=True))
