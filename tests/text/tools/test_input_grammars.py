"""The text of a free-form tool's call obeys the tool's grammar, in every notation and under every choice."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable, InputGrammar, Tool, ToolChoice, special
from imp_server.dialects.free_form import free_form_tool
from imp_server.grammar.engine import Matcher
from imp_server.grammar.languages.lark.compile import compile_lark
from imp_server.vocab.table import Vocabulary

from tests.grammar.lark.grammars import APPLY_PATCH, CALCULATOR, PATCH
from tests.grammar.test_regex import accepted
from tests.text.tools.spelled import (
    FORMATS,
    call_text,
    calls_in,
    chat,
    events_of,
    grammar,
    matcher,
    model_of,
    replays,
    takes,
    text_in,
)

FORCED = (ToolChoice("required"), ToolChoice("required", ("edit",), named=True))
AUTO = ToolChoice()
OTHER = Tool("clock", parameters={"type": "object", "properties": {}})


def edit(syntax: str, definition: str) -> Tool:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return free_form_tool("edit", {"format": form}, "tools[0]")


def only(text: str) -> Tool:
    """A tool that takes this text alone."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return edit("lark", f'start: "{escaped}"')


BROKEN = (PATCH[1:], PATCH + "\n", PATCH.replace("*** Update File", "*** Change File"), PATCH.replace("@@\n", "@@x\n"))


@pytest.mark.parametrize("form", FORMATS)
def test_a_patch_comes_back_byte_by_byte_and_a_broken_one_is_never_written(form: str) -> None:
    tools = [edit("lark", APPLY_PATCH), OTHER]
    text, *others = (call_text(form, only(patch)) for patch in (PATCH, *BROKEN))
    choices = (*FORCED, AUTO)
    turn = FORMATS.index(
        form
    )  # which broken patches a choice meets, and how finely a good one is cut, differs by format
    for number, choice in enumerate(choices, turn):
        request = chat(tools, choice)
        bound = matcher(form, request)
        assert takes(bound, text), choice
        for events in replays(form, request, text, [range(len(text)) if number % 2 else []]):
            assert [(name, json.loads(arguments)) for name, arguments in calls_in(events)] == [
                ("edit", {"input": PATCH})
            ]
            assert text_in(events).strip() == ""
        met = others if choice is AUTO else [others[number % len(others)]]
        assert not any(takes(bound, other) for other in met), choice


@pytest.mark.parametrize("form", FORMATS)
def test_a_regex_binds_the_whole_text(form: str) -> None:
    tools = [edit("regex", r"(\d{1,3}|n/a)( \"x\")?")]
    for choice in (*FORCED, AUTO):
        bound = matcher(form, chat(tools, choice))
        taken = [t for t in ("7", "123", 'n/a "x"', "1234", "", "7 ", "a") if takes(bound, call_text(form, only(t)))]
        assert taken == ["7", "123", 'n/a "x"']


@pytest.mark.parametrize("form", FORMATS)
def test_walks_under_the_mask_write_texts_of_the_grammar(form: str) -> None:
    machine = compile_lark(CALCULATOR)
    request = chat([edit("lark", CALCULATOR)], FORCED[1], max_tokens=400)
    model = model_of(form)
    bound = matcher(form, request)
    rng, n_read = random.Random(form), 0
    for _ in range(4):
        text = walk(bound, model.vocabulary, rng)
        if form == "harmony":
            text += special("<|call|>")
        [(name, arguments)] = calls_in(events_of(form, request, text))
        assert name == "edit" and accepted(machine, json.loads(arguments)["input"]), text
        n_read += 1
    assert n_read == 4


def walk(bound: Matcher, vocabulary: Vocabulary, rng: random.Random, n: int = 60) -> bytes:
    """`n` random bytes under the mask, then the shortest way out."""
    state, out = bound.start, bytearray()
    mask = np.zeros(-(-vocabulary.size // 32), dtype=np.uint32)
    for _ in range(n):
        bound.fill_mask(state, mask)
        allowed = [i for i in range(256) if mask[i // 32] >> (i % 32) & 1]
        if not allowed:
            break
        chosen = rng.choice([i for i in allowed if 32 <= i < 127] or allowed)
        out.append(chosen)
        after = bound.advance(state, chosen)
        assert after is not None
        state = after
    return bytes(out) + bound.way_out(state)


@pytest.mark.parametrize("mode", ["auto", "required", "none"])
@pytest.mark.parametrize("form", ["hermes", "qwen_xml"])
def test_a_broken_definition_is_refused_by_place_whatever_is_chosen(form: str, mode: str) -> None:
    tools = [OTHER, free_form_tool("edit", {"format": LOOKING}, "tools[1]")]
    names = ("clock",) if mode == "required" else ()
    with pytest.raises(GrammarRefused, match=r"line 2, column 9: a lookahead isn't supported") as caught:
        grammar(form, chat(tools, ToolChoice(mode, names)))  # type: ignore[arg-type]
    assert caught.value.param == "tools[1].format.definition"


GROUPS = ['("a" ' * 60 + f"T{i + 1}" + ")?" * 60 for i in range(90)]
NESTED = "start: T0\n" + "".join(f"T{i}: {body}\n" for i, body in enumerate(GROUPS)) + 'T90: "x"'
LOOKING = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"\n    | /b(?=c)/'}


@pytest.mark.parametrize(
    ("syntax", "definition", "error", "named"),
    [
        ("regex", "a(b", GrammarRefused, "line 1, column 2: pattern 'a(b': unclosed group"),
        ("regex", "x\n[z-a]", GrammarRefused, "line 2, column 3: "),
        ("regex", r"(a)\1", GrammarRefused, "back-reference"),
        ("regex", "[]", GrammarUnsatisfiable, "no text satisfies this regex"),
        ("lark", NESTED, GrammarRefused, "nested too deeply"),
        ("lark", 'begin: "a"', GrammarRefused, "no rule named start"),
        ("lark", 'start: "a" start', GrammarUnsatisfiable, "derives no finite text"),
    ],
)
def test_what_is_wrong_with_a_definition_is_said(
    syntax: str, definition: str, error: type[GrammarRefused], named: str
) -> None:
    with pytest.raises(error, match=re.escape(named)) as caught:
        grammar("hermes", chat([edit(syntax, definition)], AUTO))
    assert caught.value.param == "tools[0].format.definition"


def test_a_text_that_looks_like_the_closer_survives_where_the_notation_allows() -> None:
    """In raw notations the text runs up to a closer that something of the call follows."""
    text = "a\n</parameter>\nb</parameter>\n"
    for form in FORMATS:
        request = chat([edit("lark", "start: /(.|\\n)+/")], FORCED[0])
        events = events_of(form, request, call_text(form, only(text)))
        assert json.loads(calls_in(events)[0][1]) == {"input": text}, form


def test_tools_without_a_grammar_take_any_text() -> None:
    free = free_form_tool("edit", {}, "tools[0]")
    assert isinstance(edit("regex", "a").input_grammar, InputGrammar) and free.input_grammar is None
    for form in FORMATS:
        assert takes(matcher(form, chat([free], FORCED[0])), call_text(form, only('any\ntext \\ at "all"')))
