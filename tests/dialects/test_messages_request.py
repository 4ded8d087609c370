"""Anthropic bodies -> ChatRequest: both versions, every block, the signature, cache marks, tools."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.core import (
    CacheIntent,
    ChatRequest,
    Finish,
    InvalidRequest,
    MediaPart,
    Message,
    ReasoningIntent,
    TextPart,
    ToolCall,
    Usage,
)
from imp_server.dialects.anthropic.messages import MessageFold, parse
from imp_server.dialects.anthropic.thinking import signature
from imp_server.dialects.base import AcceptedPrompts, ReplyContext

from tests.dialects.contract_check import checked, contract
from tests.toy import byte_model

CREATE = "anthropic_messages.create_message"
USER = {"role": "user", "content": "hi"}
TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object"}}
MARK = {"cache_control": {"type": "ephemeral", "scope": "unknown to us"}}
STRICT = "2026-10-21"


def parsed(version: str = "2023-06-01", /, **body: Any) -> ChatRequest:
    return parse(checked(CREATE, {"model": "toy", "max_tokens": 8, "messages": [USER]} | body), version)


def texts(message: Message) -> list[str]:
    assert all(isinstance(part, TextPart) for part in message.parts)
    return [part.text for part in message.parts if isinstance(part, TextPart)]


def messages(*turns: dict[str, Any]) -> tuple[Message, ...]:
    return parsed(messages=list(turns)).messages


def text(role: Any, *parts: str, **rest: Any) -> Message:
    return Message(role, tuple(TextPart(part) for part in parts), **rest)


def blocks(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def test_system_as_a_string_as_blocks_and_inside_messages() -> None:
    assert parsed(system="s").messages == (text("system", "s"), text("user", "hi"))
    assert parsed(system=[{"type": "text", "text": "a"}, {"type": "text", "text": "b", **MARK}]).messages[0] == Message(
        "system", (TextPart("a"), TextPart("b", cache_mark=True))
    )
    assert messages(USER, {"role": "system", "content": [{"type": "text", "text": "now"}]}, USER)[1] == text(
        "system", "now"
    )


def test_tool_results_leave_the_user_turn_in_order() -> None:
    found = messages(
        USER,
        blocks("assistant", {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}}),
        blocks("user",
               {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
               {"type": "tool_result", "tool_use_id": "t2", "is_error": True,
                "content": [{"type": "text", "text": "no"}, {"type": "tool_reference", "tool_name": "x"}]},
               {"type": "tool_result", "tool_use_id": "t3"},
               {"type": "text", "text": "and now?"}),
    )  # fmt: skip
    assert found[1:] == (
        Message("assistant", tool_calls=(ToolCall("t1", "weather", '{"city": "Köln"}'),)),
        text("tool", "sun", tool_call_id="t1"),
        text("tool", "no", "x", tool_call_id="t2"),
        text("tool", "", tool_call_id="t3"),
        text("user", "and now?"),
    )


def test_thinking_is_given_back_and_its_signature_checked() -> None:
    good = {"type": "thinking", "thinking": "hm", "signature": signature("hm")}
    for block in (good, good | {"signature": ""}, good | {"signature": None}):
        assert messages(USER, blocks("assistant", block, {"type": "text", "text": "a"}), USER)[1] == text(
            "assistant", "a", reasoning="hm"
        )
    with pytest.raises(InvalidRequest, match="signature") as caught:
        messages(USER, blocks("assistant", good | {"thinking": "hmm"}), USER)
    assert (caught.value.code, caught.value.param) == ("invalid_signature", "messages[1].content[0].signature")


@pytest.mark.parametrize("signed", ["EqQBCkYIBxgCKkBmb3JlaWdu", "bogus"])
def test_thinking_that_another_server_signed_is_left_out(signed: str) -> None:
    foreign = {"type": "thinking", "thinking": "hm", "signature": signed}
    ours = {"type": "thinking", "thinking": "aha", "signature": signature("aha")}
    said = blocks("assistant", foreign, {"type": "text", "text": "a"})
    assert messages(USER, said, USER)[1] == text("assistant", "a")
    assert messages(USER, blocks("assistant", foreign, ours), USER)[1].reasoning == "aha"


def test_neighbours_of_one_role_are_one_turn() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    found = messages(
        blocks("user", {"type": "text", "text": "a"}),
        USER,
        blocks("assistant", {"type": "text", "text": "b"}),
        blocks("assistant", call),
        blocks("user", {"type": "tool_result", "tool_use_id": "t1", "content": "sun"}),
        blocks("user", {"type": "text", "text": "c"}),
        USER,
    )
    assert [message.role for message in found] == ["user", "assistant", "tool", "user"]
    assert texts(found[0]) == ["a", *texts(messages(USER)[0])]
    assert found[1].tool_calls and texts(found[1]) == ["b"]
    assert len(found[3].parts) == 2
    alternates = "{% for m in messages %}{{ raise_exception('no') if (m.role == 'user') != (loop.index0 % 2 == 0) }}"
    alternating = byte_model(alternates + "{{ m.content }};{% endfor %}")
    body = {"model": "toy", "max_tokens": 8, "messages": [USER, USER]}
    assert alternating.apply_template(parse(body)).count(";") == 1


def test_what_is_written_counts_for_the_mark_that_its_prefix_ends_with() -> None:
    context = ReplyContext("msg_1", "toy", 7, "req", {"model": "toy", "max_tokens": 8, "messages": [USER]})
    usage = Usage(prompt_tokens=12, cached_tokens=2, cache_write_tokens=10)
    for hour_until, buckets in [(0, (0, 8)), (1, (0, 8)), (6, (4, 4)), (10, (8, 0))]:
        context.accepted = AcceptedPrompts(pin_until=10, hour_until=hour_until)
        fold = MessageFold(context)
        fold.feed(Finish(0, "stop", usage))
        found = fold.body()["usage"]["cache_creation"]
        assert (found["ephemeral_1h_input_tokens"], found["ephemeral_5m_input_tokens"]) == buckets


def test_a_mark_says_for_how_long() -> None:
    def block(ttl: str | None) -> Any:
        mark = {"type": "ephemeral"} | ({} if ttl is None else {"ttl": ttl})
        return {"type": "text", "text": "s", "cache_control": mark}

    body = {"model": "toy", "max_tokens": 8, "system": [block("1h"), block("5m"), block(None)], "messages": [USER]}
    found = parse(body)
    system = [part for part in found.messages[0].parts if isinstance(part, TextPart)]
    assert [part.for_hour for part in system] == [True, False, False] and all(part.cache_mark for part in system)
    whole = parse(body | {"cache_control": {"type": "ephemeral", "ttl": "1h"}})
    assert whole.cache.pin_prompt and whole.cache.for_hour and not found.cache.for_hour


def test_redacted_thinking_is_skipped() -> None:
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    assert messages(USER, blocks("assistant", redacted, {"type": "text", "text": "a"}), USER)[1] == text(
        "assistant", "a"
    )


def test_documents_of_text_and_search_results_are_read() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "body"}
    nested = {"type": "content", "content": [{"type": "text", "text": "inner"}]}
    hits = [{"type": "text", "text": "hit"}]
    turn = blocks(
        "user",
        {"type": "document", "title": "T", "source": plain},
        {"type": "document", "source": nested},
        {"type": "search_result", "source": "http://x", "title": "S", "content": hits},
    )
    found = messages(turn)
    assert found[0] == text("user", "T\nbody", "inner", "S (http://x)\nhit")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}


def test_media_is_named_by_its_path_also_inside_tool_results() -> None:
    pdf = {"type": "document", "source": {"type": "url", "url": "http://x/a.pdf"}}
    found = messages(blocks("user", IMAGE, pdf))
    assert found[0].parts == (
        MediaPart("image", "messages[0].content[0]"),
        MediaPart("document", "messages[0].content[1]"),
    )
    found = messages(blocks("user", {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}))
    assert found[0].parts == (MediaPart("image", "messages[0].content[0].content[0]"),)


def said(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


CALL = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
INNER = [said("a"), said("b")]
SEARCH = {"type": "search_result", "source": "s", "title": "t", "content": INNER}


@pytest.mark.parametrize(
    "block",
    [
        said("a"),
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "a"}},
        {"type": "document", "title": "T", "source": {"type": "content", "content": INNER}},
        {"type": "document", "source": {"type": "content", "content": "a"}},
        SEARCH,
        {"type": "tool_result", "tool_use_id": "t", "content": "a"},
        {"type": "tool_result", "tool_use_id": "t", "content": INNER},
        {"type": "tool_result", "tool_use_id": "t", "content": [SEARCH]},
        {"type": "tool_result", "tool_use_id": "t", "content": []},
        {"type": "tool_result", "tool_use_id": "t"},
    ],
)
def test_every_kind_of_block_can_be_marked(block: dict[str, Any]) -> None:
    """The mark is on its last part, whatever becomes of it."""
    turns = messages(USER, blocks("assistant", CALL), blocks("user", block | MARK, said("not this")))
    parts = [part for message in turns for part in message.parts]
    marks = [part.cache_mark for part in parts if isinstance(part, TextPart)]
    assert marks == [*[False] * (len(marks) - 2), True, False]
    plain = messages(USER, blocks("assistant", CALL), blocks("user", block, said("not this")))
    texts = [[part.text for part in turn.parts if isinstance(part, TextPart)] for turn in turns]
    assert texts == [[part.text for part in turn.parts if isinstance(part, TextPart)] for turn in plain]


def test_a_mark_on_nothing_adds_nothing() -> None:
    nothing = {"type": "document", "source": {"type": "content", "content": []}}
    marked, plain = (messages(blocks("user", nothing | mark, said("q"))) for mark in (MARK, {}))
    assert marked == plain
    content: dict[str, Any]
    for content in ({}, {"content": None}, {"content": ""}, {"content": []}):
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": "t"} | content
        assert messages(USER, blocks("assistant", CALL), blocks("user", result))[-1].parts == (TextPart(""),)


def test_marks_on_blocks_inside_others_count() -> None:
    inner = [said("a") | MARK, said("b")]
    for block in (
        {"type": "document", "source": {"type": "content", "content": inner}},
        {"type": "tool_result", "tool_use_id": "t", "content": inner},
        SEARCH | {"content": inner},
    ):
        turns = messages(USER, blocks("assistant", CALL), blocks("user", block))
        assert sum(isinstance(part, TextPart) and part.cache_mark for turn in turns for part in turn.parts) == 1


def test_a_mark_on_a_call_is_one_on_the_call() -> None:
    for mark in ({}, MARK):
        turns = messages(USER, blocks("assistant", CALL | mark), USER)
        assert [call.cache_mark for turn in turns for call in turn.tool_calls] == [bool(mark)]


def test_cache_marks_travel_on_parts_and_tools() -> None:
    request = parsed(
        messages=[blocks("user", {"type": "tool_result", "tool_use_id": "t", "content": "r", **MARK},
                         {"type": "text", "text": "x", **MARK})],
        tools=[TOOL, TOOL | {"name": "b"} | MARK],
    )  # fmt: skip
    assert [part.cache_mark for m in request.messages for part in m.parts if isinstance(part, TextPart)] == [True, True]
    assert [tool.cache_mark for tool in request.tools] == [False, True]
    assert request.cache == CacheIntent() and parsed(**MARK).cache == CacheIntent(pin_prompt=True)


def test_the_billing_header_is_the_same_in_every_request() -> None:
    for header in (
        "x-anthropic-billing-header: cc_version=2.1.5; cc_entrypoint=cli; cch={0};",
        "x-anthropic-billing-header: cc_version=2.1.5.{1}; cc_entrypoint=cli; cch={0};\nYou are Claude Code.",
        "x-anthropic-billing-header: cc_version=2.1.5-beta.{1}; cch={0}; cc_entrypoint=sdk-cli;",
    ):
        systems = [header.format(*hashes) for hashes in (("a1b2c", "f1e"), ("0ff0f", "7b4"))]
        one, two = (parsed(system=[{"type": "text", "text": each}]).messages[0] for each in systems)
        assert one == two and "cc_version=2.1.5" in one.parts[0].text  # type: ignore[union-attr]
    for plain in (
        "say cch=abc;",
        "x-anthropic-billing-header: cc_version=2.1.332;",
        "cc_version=2.1.5.f1e; cch=a1b2c;",
    ):
        assert parsed(system=plain).messages[0] == text("system", plain)


def test_a_trailing_assistant_turn_is_continued() -> None:
    request = parsed(messages=[USER, {"role": "assistant", "content": "The answer is ("}])
    assert request.continue_final_message and not request.add_generation_prompt
    plain = parsed()
    assert plain.add_generation_prompt and not plain.continue_final_message


def test_a_trailing_call_without_result_is_refused() -> None:
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    with pytest.raises(InvalidRequest, match="tool_result"):
        parsed(messages=[USER, blocks("assistant", call)])


@pytest.mark.parametrize(
    ("thinking", "found"),
    [
        (None, ReasoningIntent(enabled=False)),
        ({"type": "disabled"}, ReasoningIntent(enabled=False)),
        ({"type": "adaptive"}, ReasoningIntent(enabled=True)),
        ({"type": "between_tools"}, ReasoningIntent(enabled=True)),
        ({"type": "enabled", "budget_tokens": 2048}, ReasoningIntent(enabled=True, budget_tokens=2048)),
        ({"type": "adaptive", "display": "omitted"}, ReasoningIntent(enabled=True, shown=False)),
    ],
)
def test_thinking_is_opt_in(thinking: Any, found: ReasoningIntent) -> None:
    request = parsed(thinking=thinking)
    assert request.reasoning == found and not request.reasoning_default_on


@pytest.mark.parametrize(
    ("choice", "mode", "names", "parallel"),
    [
        (None, "auto", (), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", (), False),
        ({"type": "any"}, "required", (), True),
        ({"type": "none"}, "none", (), True),
        ({"type": "tool", "name": "weather"}, "required", ("weather",), True),
    ],
)
def test_tool_choice(choice: Any, mode: str, names: tuple[str, ...], parallel: bool) -> None:
    found = parsed(tools=[TOOL], tool_choice=choice).tool_choice
    assert (found.mode, found.names, found.parallel) == (mode, names, parallel)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "other"}])
def test_forcing_what_is_not_there_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(tools=[{"type": "bash_20250124", "name": "bash"}], tool_choice=choice)
    assert caught.value.code == "unknown_tool"


def test_server_tools_are_left_out() -> None:
    request = parsed(
        tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}, TOOL | {"type": "custom"}]
    )
    assert [tool.name for tool in request.tools] == ["weather"]


def test_output_format_and_effort() -> None:
    request = parsed(output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}})
    assert request.output.response_format.kind == "json_schema" and request.output.response_format.schema == {
        "type": "object"
    }
    assert request.reasoning.effort == "low"


@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k"])
def test_sampling_is_for_the_old_version_only(field: str) -> None:
    assert parsed(**{field: 1}).sampling.asked[field] == 1
    with pytest.raises(InvalidRequest) as caught:
        parsed(STRICT, **{field: 1})
    assert caught.value.code == "unsupported_parameter"
    assert parsed(STRICT, **{field: None}) == parsed()


def test_the_new_version_refuses_two_shapes_of_content() -> None:
    document = {"type": "document", "source": {"type": "text", "data": "d", "media_type": "text/plain"}}
    cited = {"type": "text", "text": "x", "citations": [{"type": "char_location"}]}
    for turns in ([USER, blocks("assistant", document), USER], [blocks("user", cited)]):
        parsed(messages=turns)
        with pytest.raises(InvalidRequest):
            parsed(STRICT, messages=turns)
    parsed(STRICT, messages=[blocks("user", cited | {"citations": []})])


def test_nulls_are_absent() -> None:
    nullable = set(contract().document["components"]["schemas"]["MessagesRequest"]["properties"]) - {
        "model",
        "messages",
    }
    assert parsed(**dict.fromkeys(nullable)) == parsed(max_tokens=None)


def test_unknown_fields_are_ignored() -> None:
    assert parsed(diagnostics={"x": 1}, speed="fast", context_management={"edits": []}, container="c") == parsed()


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"system": {"type": "text", "text": "x"}}, "system"),
        ({"system": 5}, "system"),
        ({"system": [IMAGE]}, "system[0].text"),
        ({"messages": [blocks("user", {"type": "server_tool_use"})]}, "messages[0].content[0].type"),
        ({"messages": [blocks("user", IMAGE | {"source": {"type": "x"}})]}, "messages[0].content[0].source.type"),
        ({"messages": [blocks("user", {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_use"}]})]},
         "messages[0].content[0].content[0].type"),
        ({"temperature": 2.1}, "temperature"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"tools": [{"name": "x"}]}, "tools[0]"),
        ({"session_id": "a b"}, "session_id"),
    ],
)  # fmt: skip
def test_the_contract_refuses(body: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**body)
    assert f'"{path}' in caught.value.message
