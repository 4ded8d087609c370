"""Responses bodies -> ChatRequest: what the contract lets through, the conversation it becomes, the tools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from imp_server.core import (
    ChatRequest,
    InvalidRequest,
    MediaPart,
    Message,
    ResponseFormat,
    TextPart,
    ToolCall,
)
from imp_server.dialects.openai_responses.handlers import parse
from imp_server.dialects.openai_responses.stored import with_ids
from imp_server.dialects.openai_responses.tools import tool_table
from imp_server.dialects.openai_responses.truncation import fitting, without_oldest_turns
from imp_server.dialects.sealed import seal, unseal

from tests.dialects.contract_check import checked, contract

CREATE = "openai_responses.create_response"
FUNCTION = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True}


def parsed(**body: Any) -> ChatRequest:
    return parse(checked(CREATE, {"model": "toy", "input": "hi"} | body))


def messages(*items: dict[str, Any], **body: Any) -> tuple[Message, ...]:
    return parsed(input=list(items), **body).messages


def text(role: Any, *parts: str, **rest: Any) -> Message:
    return Message(role, tuple(TextPart(part) for part in parts), **rest)


def test_a_string_is_a_user_message_and_instructions_come_first() -> None:
    assert parsed(instructions="be brief").messages == (text("system", "be brief"), text("user", "hi"))


def test_developer_is_system_and_parts_stay_apart() -> None:
    content = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    found = messages({"role": "developer", "content": content}, {"role": "user", "content": "x"})
    assert found == (text("system", "a", "b"), text("user", "x"))


def test_one_assistant_turn_is_gathered_from_its_items() -> None:
    found = messages(
        {"role": "user", "content": "q"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "let me see", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'},
        {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "weather", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    )  # fmt: skip
    calls = (ToolCall("c1", "weather", '{"a":1}'), ToolCall("c2", "weather", "{}"))
    assert found == (
        text("user", "q"),
        text("assistant", "let me see", reasoning="hm", tool_calls=calls),
        text("tool", "sun", tool_call_id="c1", name="weather"),
        text("tool", "rain", tool_call_id="c2", name="weather"),
    )


def test_reasoning_that_led_nowhere_is_dropped() -> None:
    found = messages(
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}, {"role": "user", "content": "q"}
    )
    assert found == (text("user", "q"),)


@pytest.mark.parametrize(
    "item",
    [
        {"summary": [], "encrypted_content": seal("reasoning", "hm")},
        {"summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "gAAAA-of-another-server"},
        {"content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": seal("reasoning", "hm")},
    ],
)
def test_reasoning_comes_back_from_any_of_its_forms(item: dict[str, Any]) -> None:
    found = messages(
        {"type": "reasoning", **item}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}
    )
    assert found[0] == text("assistant", "a", reasoning="hm")


@pytest.mark.parametrize("sealed", ["", "x", "imp-reasoning-1.", "imp-reasoning-1.!!", "imp-reasoning-1.//79"])
def test_broken_seals_are_skipped(sealed: str) -> None:
    assert not unseal("reasoning", sealed)


def test_seal_round_trip() -> None:
    assert unseal("reasoning", seal("reasoning", "grün 🌱")) == "grün 🌱"


def test_records_of_hosted_tools_are_skipped() -> None:
    found = messages({"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"role": "user", "content": "q"})
    assert found == (text("user", "q"),)


def test_an_item_of_an_empty_type_is_a_record_too() -> None:
    assert messages({"type": ""}, {"role": "user", "content": "q"}) == (text("user", "q"),)
    assert with_ids([{"type": ""}], "resp_1") == [{"id": "item_1_in0", "type": "", "status": "completed"}]


def test_an_input_without_a_message_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="input holds no message") as caught:
        messages({"type": "reasoning", "summary": []})
    assert caught.value.code == "invalid_history"


def test_custom_calls_of_a_history_become_functions() -> None:
    found = messages(
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
    )
    assert found[0].tool_calls == (ToolCall("c", "patch", '{"input": "*** Begin"}'),)
    assert found[1] == text("tool", "ok", tool_call_id="c", name="patch")


def test_media_parts_keep_their_path() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"}
    assert messages({"role": "user", "content": [image]})[0].parts == (MediaPart("image", "input[0].content[0]"),)


def test_an_image_in_a_tool_output_is_read_as_one() -> None:
    found = messages(
        {"type": "function_call", "call_id": "c", "name": "shot", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]},
    )
    assert found[1].parts == (MediaPart("image", "input[1].output[0]"),)


def test_history_comes_before_the_input() -> None:
    request = parse({"model": "toy", "input": "next"}, [{"type": "message", "role": "user", "content": "first"}])
    assert request.messages == (text("user", "first"), text("user", "next"))


def test_namespaces_are_flattened_and_hosted_tools_skipped() -> None:
    inner = {"type": "function", "name": "search", "strict": False, "parameters": {"type": "object"}}
    request = parsed(
        tools=[FUNCTION, {"type": "web_search"}, {"type": "mcp", "name": "p"}, {"type": "brand_new"},
               {"type": "namespace", "name": "mcp__docs", "description": "d", "tools": [inner]}],
        tool_choice="auto",
    )  # fmt: skip
    assert [tool.name for tool in request.tools] == ["weather", "search"]
    assert request.tools[0].strict and not request.tools[1].strict


def test_names_are_qualified_only_where_they_clash() -> None:
    space = [{"type": "namespace", "name": n, "tools": [{"type": "function", "name": "get"}]} for n in ("a", "b")]
    table = tool_table({"tools": [*space, {"type": "function", "name": "put"}]})
    assert [tool.name for tool in table.tools] == ["a__get", "b__get", "put"]
    assert table.wire_name("b__get") == ("get", "b") and table.model_name("get", "a") == "a__get"
    assert table.model_name("gone", "a") == "gone"


def test_the_same_name_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        parsed(tools=[FUNCTION, FUNCTION])


@pytest.mark.parametrize(
    ("choice", "mode", "names", "named"),
    [
        ("none", "none", (), False),
        ("required", "required", (), False),
        ({"type": "function", "name": "weather"}, "required", ("weather",), True),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
         "required", ("weather",), False),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "none", (), False),
    ],
)  # fmt: skip
def test_tool_choice(choice: Any, mode: str, names: tuple[str, ...], named: bool) -> None:
    found = parsed(tools=[FUNCTION], tool_choice=choice, parallel_tool_calls=False).tool_choice
    assert (found.mode, found.names, found.named) == (mode, names, named)


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "other"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
    ],
)
def test_forcing_what_is_not_there_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(tools=[{"type": "web_search"}], tool_choice=choice)
    assert caught.value.code == "unknown_tool"


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ({"type": "text"}, ResponseFormat()),
        ({"type": "json_object"}, ResponseFormat("json_object", param="text.format")),
        ({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
         ResponseFormat("json_schema", schema={"type": "object"}, name="n", param="text.format")),
        ({"type": "regex", "pattern": "a+"}, ResponseFormat("regex", text="a+", param="text.format")),
        ({"type": "grammar", "grammar": 'root ::= "a"'},
         ResponseFormat("grammar", text='root ::= "a"', param="text.format")),
    ],
)  # fmt: skip
def test_text_format(form: dict[str, Any], found: ResponseFormat) -> None:
    assert parsed(text={"format": form}).output.response_format == found


@pytest.mark.parametrize(
    ("effort", "enabled"), [("none", False), ("low", True), ("medium", True), ("max", True), (None, None)]
)
def test_effort(effort: str | None, enabled: bool | None) -> None:
    found = parsed(reasoning={"effort": effort, "summary": "auto"}).reasoning
    assert (found.effort, found.enabled, found.budget_fraction) == (effort, enabled, None)


def test_nulls_are_absent() -> None:
    nullable = set(contract().document["components"]["schemas"]["ResponsesRequest"]["properties"]) - {"model", "input"}
    assert parsed(**dict.fromkeys(nullable)) == parsed()


def test_unknown_fields_are_ignored() -> None:
    assert parsed(client_metadata={"x": 1}, context_management=[{"type": "compaction"}]) == parsed()


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"background": "yes"}, "background"),
        ({"conversation": ""}, "conversation"),
        ({"conversation": {"name": "c"}}, "conversation.id"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"store": "yes"}, "store"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": 2.1}, "temperature"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "message", "role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "input[0].content[0].type"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"session_id": "with space"}, "session_id"),
    ],
)
def test_the_contract_refuses(body: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**body)
    assert f'"{path}"' in caught.value.message


def test_the_oldest_turn_goes_with_all_that_answered_it() -> None:
    call = text("assistant", tool_calls=(ToolCall("c", "f", "{}"),))
    turns = (text("system", "s"), text("user", "1"), call, text("tool", "r", tool_call_id="c"), text("user", "2"))
    assert without_oldest_turns(turns, 1) == (text("system", "s"), text("user", "2"))
    assert without_oldest_turns(turns, 9) == without_oldest_turns(turns, 1)
    assert without_oldest_turns(turns, 0) == turns


@pytest.mark.parametrize("n_turns", [1, 2, 3, 9, 1000])
@pytest.mark.parametrize("room", [0, 3, 10, 57, 5000])
def test_no_more_turns_are_dropped_than_must_be_and_few_prompts_are_counted(n_turns: int, room: int) -> None:
    turns = tuple(text(role, "x") for _ in range(n_turns) for role in ("user", "assistant"))
    counted: list[int] = []

    async def count(request: ChatRequest) -> int:
        counted.append(len(request.messages))
        return 2 * len(request.messages)

    fitted = asyncio.run(fitting(ChatRequest(turns), count, room)).messages
    linear = next((n for n in range(n_turns) if 2 * len(turns[2 * n :]) < room), n_turns - 1)
    assert fitted == turns[2 * linear :]
    assert len(counted) <= 12
