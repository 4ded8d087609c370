"""Every format's enforced spelling is one that its own reader reads back, and nothing else passes."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
from imp_server.core import (
    ChatRequest,
    GrammarRefused,
    InvalidRequest,
    Message,
    Segment,
    TextPart,
    Tool,
    ToolChoice,
    special,
)
from imp_server.grammar.binding import Binder
from imp_server.grammar.check import check_envelope
from imp_server.grammar.engine import GrammarSpace, Matcher
from imp_server.text.free_reply import free_reply
from imp_server.text.tools.base import mark as mark_of
from imp_server.text.tools.enforce import bound_tools, forced_calls, may_call_often, offered_tools
from imp_server.text.tools.formats import all_formats
from imp_server.vocab.table import Vocabulary

from tests.asked import made
from tests.text.tools.test_formats import Case, read

SURROGATES = ("utf-8", "surrogateescape")

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


def chat(**fields: Any) -> ChatRequest:
    return made(ChatRequest, (Message("user", (TextPart("hi"),)),), **({"tools": TOOLS} | fields))


def matcher(form: str, template: str, request: ChatRequest) -> Matcher:
    tools = bound_tools(request, offered_tools(request), Binder())
    notation = all_formats()[form]
    if request.tool_choice.mode == "required":
        node = forced_calls(request, notation, tools, mark, template)
    else:
        many = may_call_often(request)
        segments = (Segment("answer"), *notation.segments(offered_tools(request), 0, 1))
        node = free_reply(segments, 0, notation.sections(tools, mark, template, many), many=many)
    plan = check_envelope(node)
    return GrammarSpace(VOCABULARY).matcher(plan)


def walk(m: Matcher, rng: random.Random, most: int = 400) -> bytes | None:
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
        after = m.advance(state, token_id)
        assert after is not None
        state = after
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
    assert bound_tools(request, offered_tools(request), Binder())[0].schema == {"type": "object"}
    strict = chat(tools=(Tool(name="bad", parameters=parameters, strict=True),))
    forced = chat(tools=(Tool(name="bad", parameters=parameters),), tool_choice=ToolChoice("required"))
    for refused in (strict, forced):
        with pytest.raises(GrammarRefused) as caught:
            bound_tools(refused, offered_tools(refused), Binder())
        assert caught.value.param == "tools[0].function.parameters"


def test_a_choice_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nobody"):
        offered_tools(chat(tool_choice=ToolChoice("required", ("nobody",), named=True)))
    with pytest.raises(InvalidRequest, match="no tools"):
        offered_tools(chat(tools=(), tool_choice=ToolChoice("required")))
    assert offered_tools(chat(tool_choice=ToolChoice("none"))) == ()


CODES = [
    b"if a < b:\n    print(\"</param\", 'x')\n\n",
    b"<parameters>\n<parameter>\nx\n</parameter>\n</parameters>",
    b"</parameter>",
    b"<parameter1>\na\n</parameter1>\n</parameter",
    b"a\n</param1>\n</param",
    b"a\n</parameter>\n<parameter>\n</functions>\n</function>\n",
    b"a\n</parameter>\n\n\n",
    b"\n",
    b"",
]
XML_FORMS = {
    "qwen_xml": (b"<tool_call>\n<function=run>\n<parameter=code>\n", b"\n</parameter>\n</function>\n</tool_call>"),
    "seed": (
        b"<seed:tool_call>\n<function=run>\n<parameter=code>",
        b"</parameter>\n</function>\n</seed:tool_call>",
    ),
    "minimax": (
        b'<minimax:tool_call>\n<invoke name="run">\n<parameter name="code">',
        b"</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
}
"""What stands around a value."""


BOUNDS: list[dict[str, object]] = [{"maxLength": 200}, {"pattern": "^[^\\x01]*$"}]


@pytest.mark.parametrize("form", list(XML_FORMS))
@pytest.mark.parametrize(("code", "bound"), [*((c, {}) for c in CODES), *((CODES[1], b) for b in BOUNDS)])
def test_code_in_xml_arguments_may_hold_closers_that_nothing_of_the_call_follows(
    form: str, bound: dict[str, object], code: bytes
) -> None:
    """What the grammar takes for text the reader takes for text, and the other way round."""
    properties = {"code": {"type": "string", **bound}, "n": {"type": "integer"}}
    tool = Tool(name="run", parameters={"type": "object", "properties": properties, "required": ["code"]})
    before, after = XML_FORMS[form]
    if form == "minimax":
        code = code.replace(b"<parameter=", b'<parameter name="').replace(b"function>", b"invoke>")
    if form == "qwen_xml" and code == b"</parameter>":
        code += b"\n</function>"  # the newline before the value isn't the closer's
    for choice in (ToolChoice("required"), ToolChoice()):
        m = matcher(form, "", chat(tools=(tool,), tool_choice=choice))
        state = m.advance_bytes(m.start, before + code + after)
        assert state is not None and m.is_done(state)
    text = before + code + after
    for places in ([], cuts(text), *([place] for place in cuts(text))):
        [(_, arguments)], answer = read(Case(form, "", []), text, places, tools=(tool,))
        assert json.loads(arguments) == {"code": code.decode()} and answer == ""


@pytest.mark.parametrize("form", list(XML_FORMS))
def test_xml_arguments_end_at_one_place_only(form: str) -> None:
    """A closer that the call goes on behind ends the value, if the call may go on so; else it can't be written."""
    properties = {"code": {"type": "string"}, "mode": {"type": "string", "minLength": 3}}
    required = Tool(name="run", parameters={"type": "object", "properties": properties, "required": ["code", "mode"]})
    m = matcher(form, "", chat(tools=(required,), tool_choice=ToolChoice("required")))
    before, after = XML_FORMS[form]
    assert m.advance_bytes(m.start, before + b"x" + after) is None
    again = b'<parameter name="mode">' if form == "minimax" else b"<parameter=mode>"
    lead = b"\n" if form == "qwen_xml" else b""
    closer = lead + b"</parameter>\n"
    for gap in (b"", b"\n"):
        text = before + b"x" + closer + gap + again + lead + b"abc" + after
        state = m.advance_bytes(m.start, text)
        assert state is not None and m.is_done(state)
        [(_, arguments)], _ = read(Case(form, "", []), text, [], tools=(required,))
        assert json.loads(arguments) == {"code": "x", "mode": "abc"}
    assert m.advance_bytes(m.start, before + b"x" + closer + again.replace(b"mode", b"none")) is None
    assert m.advance_bytes(m.start, before + b"x" + closer + again + lead + b"ab" + after) is None


@pytest.mark.parametrize("form", list(XML_FORMS))
@pytest.mark.parametrize("choice", [ToolChoice(), ToolChoice("required")])
@pytest.mark.parametrize("code", [b"", b"if a < b:\n    f('</param')\n", b"x" * 5 + b"\n</param>\n</parameter>\ny"])
def test_a_closer_is_spelled_to_its_end(form: str, code: bytes, choice: ToolChoice) -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    m = matcher(form, "", chat(tools=(Tool(name="run", parameters=schema),), tool_choice=choice))
    before, after = XML_FORMS[form]
    tag = after[: after.index(b">")]
    assert tag.endswith(b"</parameter")
    state = m.advance_bytes(m.start, before + code + tag)
    assert state is not None and m.forced(state) == b">"
    mask = m.mask(state)
    assert [i for i in range(256) if mask[i // 32] >> (i % 32) & 1] == [ord(">")]


@pytest.mark.parametrize("form", list(XML_FORMS))
def test_where_a_closer_may_be_misspelled_there_is_a_way_to_the_end(form: str) -> None:
    """In a value that speaks of such tags. The call can't end by it, and steering brings the true one in time."""
    tool = Tool(
        name="run", parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    )
    m = matcher(form, "", chat(tools=(tool,), tool_choice=ToolChoice("required")))
    before, after = XML_FORMS[form]
    before += b"<parameter>"
    wrong = before + b"x" + after.replace(b"parameter>", b"parameter1>")
    assert m.advance_bytes(m.start, wrong) is None
    lost = m.advance_bytes(m.start, wrong[:-2])
    assert lost is not None
    way = m.way_out(lost)
    assert len(way) < 70
    found = m.advance_bytes(lost, way)
    assert found is not None and m.is_done(found)
    [(name, arguments)], _ = read(Case(form, "", []), wrong[:-2] + way, [], tools=(tool,))
    assert name == "run" and json.loads(arguments)["code"].startswith("<parameter>x")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("glm", "M<tool_call>run\nM<arg_key>codeM</arg_key>\nM<arg_value>{}M</arg_value>\nM</tool_call>"),
        ("gemma", 'M<|tool_call>call:run{{code:M<|"|>{}M<|"|>}}M<tool_call|>'),
    ],
)
@pytest.mark.parametrize(
    "code", ["a</arg_value>\n<arg_key>b", 'say <|"|> twice <|"|>', "</tool_call", "<tool_call|", "x"]
)
def test_where_tags_are_special_tokens_their_text_is_text(form: str, text: str, code: str) -> None:
    """M stands before a special token."""
    marked = re.sub(r"M(<[^>]*>)", lambda found: mark_of(found.group(1)), text).format(code).encode(*SURROGATES)
    tool = Tool(name="run", parameters={"type": "object", "properties": {"code": {"type": "string"}}})
    for places in ([], cuts(marked)):
        [(name, arguments)], _ = read(Case(form, "", []), marked, places, tools=(tool,))
        assert name == "run" and json.loads(arguments) == {"code": code}


@pytest.mark.parametrize("choice", [ToolChoice(), ToolChoice("required")])
def test_kimi_calls_with_and_without_the_section_are_bound_and_read(choice: ToolChoice) -> None:
    m = matcher("kimi", "", chat(tool_choice=choice))
    call = b'<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Bonn"}<|tool_call_end|>'
    section = b"<|tool_calls_section_begin|>" + call + b"<|tool_calls_section_end|>"
    for text in (call, section, call + call):
        state = m.advance_bytes(m.start, text)
        if choice.mode == "required" and text != section:
            assert state is None, "what is forced is spelled as the template spells it"
        else:
            assert state is not None and m.is_done(state)
        assert m.advance_bytes(m.start, text.replace(b'"Bonn"', b"7")) is None
        calls, answer = read(Case("kimi", "", []), text, cuts(text), tools=TOOLS)
        assert [name for name, _ in calls] == ["get_weather"] * text.count(b"Bonn") and answer == ""
