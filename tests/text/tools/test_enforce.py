"""Every format's enforced spelling is one that its own reader reads back, and nothing else passes."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from imp_server.core import ChatRequest, GrammarRefused, InvalidRequest, Message, TextPart, Tool, ToolChoice, special
from imp_server.grammar.check import check_envelope
from imp_server.grammar.engine import GrammarSpace
from imp_server.text.tools.enforce import bound_tools, calls_node, offered_tools
from imp_server.text.tools.formats import all_formats
from imp_server.vocab.table import Vocabulary

from tests.text.tools.test_formats import Case, read

TEMPLATES = {"deepseek": ["", "```json"], "mistral": ["", "[ARGS]"]}
TOOLS = (
    Tool(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 6},
                "days": {"type": "integer", "minimum": 1, "maximum": 20},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    Tool(name="ping"),
)
SPECIALS = ["<|end|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"]
VOCABULARY = Vocabulary(
    [bytes([i]) for i in range(256)] + [None] * len(SPECIALS),
    {256 + i: t for i, t in enumerate(SPECIALS)},
    end_ids=[256],
)


def mark(tag: str) -> bytes:
    return special(tag) if VOCABULARY.special_id(tag) is not None else tag.encode()


CASES = [(form, template) for form in sorted(all_formats()) for template in TEMPLATES.get(form, [""])]


def chat(**fields: object) -> ChatRequest:
    return ChatRequest((Message("user", (TextPart("hi"),)),), **({"tools": TOOLS} | fields))  # type: ignore[arg-type]


def matcher(form: str, template: str, request: ChatRequest):
    tools = bound_tools(request, offered_tools(request))
    node = calls_node(request, all_formats()[form], tools, mark, template)
    plan = check_envelope(node)
    return GrammarSpace(VOCABULARY).matcher(plan)


def walk(m, rng: random.Random, most: int = 400) -> bytes | None:
    """A random completion under the mask, byte by byte; None if it was cut."""
    state, out = m.start, bytearray()
    mask = np.zeros(-(-VOCABULARY.size // 32), dtype=np.uint32)
    for _ in range(most):
        m.fill_mask(state, mask)
        allowed = [i for i in range(VOCABULARY.size) if i != 256 and mask[i // 32] >> (i % 32) & 1]
        if m.is_done(state) and (not allowed or rng.random() < 0.5):
            return bytes(out)
        assert allowed, f"dead end after {bytes(out)!r}"
        token_id = rng.choice([i for i in allowed if 32 <= i < 127] or allowed)
        out += VOCABULARY.token_bytes[token_id]
        state = m.advance(state, token_id)
        assert state is not None
    return None


def cuts(text: bytes) -> list[int]:
    """Everywhere but inside special tokens."""
    return [i for i in range(1, len(text)) if text.rfind(b"\xff", 0, i) <= text.rfind(b"\xfe", 0, i)]


@pytest.mark.parametrize(("form", "template"), CASES)
def test_a_forced_call_reads_back_as_what_the_schema_allows(form: str, template: str) -> None:
    m = matcher(form, template, chat(tool_choice=ToolChoice("required")))
    rng, n_read = random.Random(form), 0
    for _ in range(12):
        text = walk(m, rng)
        if text is None:
            continue
        if form == "harmony":
            text += special("<|call|>")
        calls, answer = read(Case(form, "", []), text, cuts(text), tools=TOOLS)
        assert calls, text
        assert answer.strip() == ""
        for name, arguments in calls:
            value = json.loads(arguments)
            if name == "ping":
                assert value == {}
                continue
            assert name == "get_weather" and set(value) <= {"city", "days", "tags"}
            assert isinstance(value["city"], str) and len(value["city"]) <= 6
            assert 1 <= value.get("days", 1) <= 20 and set(value.get("tags", [])) <= {"a", "b"}
        n_read += 1
    assert n_read >= 3


@pytest.mark.parametrize("form", sorted(all_formats()))
def test_a_named_function_is_called_once(form: str) -> None:
    choice = ToolChoice("required", ("ping",), named=True)
    m = matcher(form, "", chat(tool_choice=choice))
    text = walk(m, random.Random(1))
    assert text is not None
    if form == "harmony":
        text += special("<|call|>")
    assert [(n, json.loads(a)) for n, a in read(Case(form, "", []), text, [], tools=TOOLS)[0]] == [("ping", {})]


def test_auto_lets_text_flow_and_binds_from_the_tag_on() -> None:
    m = matcher("hermes", "", chat())
    free = m.advance_bytes(m.start, b"Anything <b> at all. ")
    assert free is not None and m.is_done(free)
    bound = m.advance_bytes(free, b'<tool_call>\n{"name": "')
    assert bound is not None and not m.is_done(bound)
    assert m.advance_bytes(bound, b"nobody") is None
    after = m.advance_bytes(bound, b'ping", "arguments": {}}\n</tool_call>')
    assert after is not None and m.is_done(after)
    assert m.advance_bytes(after, b" and more text") is not None


def test_without_parallel_calls_one_call_ends_the_reply() -> None:
    m = matcher("hermes", "", chat(tool_choice=ToolChoice(parallel=False)))
    after = m.advance_bytes(m.start, b'Hi <tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
    assert after is not None and m.is_done(after)
    assert m.advance_bytes(after, b" more") is None


def test_one_bad_schema_does_not_sink_the_others() -> None:
    parameters = {"type": "object", "properties": {"x": {"$ref": "https://example.com/x"}}}
    request = chat(tools=(Tool(name="bad", parameters=parameters), *TOOLS))
    assert bound_tools(request, offered_tools(request))[0].schema == {"type": "object"}
    strict = chat(tools=(Tool(name="bad", parameters=parameters, strict=True),))
    forced = chat(tools=(Tool(name="bad", parameters=parameters),), tool_choice=ToolChoice("required"))
    for refused in (strict, forced):
        with pytest.raises(GrammarRefused) as caught:
            bound_tools(refused, offered_tools(refused))
        assert caught.value.param == "tools[0].function.parameters"


def test_a_choice_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nobody"):
        offered_tools(chat(tool_choice=ToolChoice("required", ("nobody",), named=True)))
    with pytest.raises(InvalidRequest, match="no tools"):
        offered_tools(chat(tools=(), tool_choice=ToolChoice("required")))
    assert offered_tools(chat(tool_choice=ToolChoice("none"))) == ()


def test_code_in_xml_arguments_may_hold_anything_but_the_closer() -> None:
    tool = Tool(
        name="run", parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    )
    m = matcher("qwen_xml", "", chat(tools=(tool,), tool_choice=ToolChoice("required")))
    code = b"if a < b:\n    print(\"</param\", 'x')\n\n"
    text = b"<tool_call>\n<function=run>\n<parameter=code>\n" + code + b"\n</parameter>\n</function>\n</tool_call>"
    state = m.advance_bytes(m.start, text)
    assert state is not None and m.is_done(state)
    assert m.advance_bytes(m.start, text.replace(b'</param"', b'\n</parameter1>"')) is None
