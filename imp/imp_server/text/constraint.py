"""The grammar that binds a request's output: the one place of text/ that asks grammar/ for it.

It binds the whole completion: thinking is free text up to its closer, then come the answer or the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imp_server.core import ChatRequest, GrammarPlan, GrammarRefused, ResponseFormat, special
from imp_server.grammar.check import (
    check_choices,
    check_envelope,
    check_gbnf,
    check_json_object,
    check_regex,
    check_schema,
)
from imp_server.grammar.envelope import Alt, Branch, Free, Lit, Node, Seq, Value, Words
from imp_server.text.thinking import ThinkTags
from imp_server.text.tools.base import ToolFormat
from imp_server.text.tools.enforce import bound_tools, calls_node, offered_tools
from imp_server.vocab.table import Vocabulary

_BLANK_AFTER_THINKING: Node = Alt((Lit(b"\n\n"), Lit(b"\n"), Seq(())))


@dataclass(frozen=True, slots=True)
class ThinkState:
    """Whether a reply may think before its bound part."""

    tags: ThinkTags | None
    starts: bool
    """The prompt ends inside thinking."""
    may: bool
    """The model may open thinking by itself."""


def constraint(
    chat: ChatRequest, vocabulary: Vocabulary, thinking: ThinkState, form: ToolFormat | None, template: str
) -> GrammarPlan | None:
    """None if the request leaves the output free. Raises GrammarRefused, GrammarUnsatisfiable, InvalidRequest."""
    tools = bound_tools(chat, offered_tools(chat)) if form is not None else []
    wanted = chat.response_format
    if not tools and wanted.kind == "text":
        return None
    thinks = thinking.tags is not None and (thinking.starts or thinking.may)
    try:
        if not tools and not thinks:
            return _plain(wanted)
        node = None if wanted.kind == "text" else _answer(wanted)
        if tools:
            assert form is not None
            node = calls_node(chat, form, tools, lambda text: tag_bytes(text, vocabulary), template, node)
        assert node is not None
        return check_envelope(_after_thinking(node, thinking, vocabulary) if thinks else node)
    except GrammarRefused as refused:
        if refused.param is None:
            refused.param = "tools" if tools else wanted.param
        raise


def bound_text(wanted: ResponseFormat) -> GrammarPlan | None:
    """The grammar of a plain completion. Raises GrammarRefused, GrammarUnsatisfiable."""
    if wanted.kind == "text":
        return None
    try:
        return _plain(wanted)
    except GrammarRefused as refused:
        refused.param = refused.param or wanted.param
        raise


def tag_bytes(text: str, vocabulary: Vocabulary) -> bytes:
    """A tag as this vocabulary writes it: a special token, or text."""
    return special(text) if vocabulary.special_id(text) is not None else text.encode()


def _plain(wanted: ResponseFormat) -> GrammarPlan:
    match wanted.kind:
        case "json_object":
            return check_json_object()
        case "json_schema":
            return check_schema(wanted.schema)
        case "regex":
            return check_regex(wanted.text)
        case "grammar":
            return check_gbnf(wanted.text)
        case _:
            return check_choices(wanted.choices)


def _answer(wanted: ResponseFormat) -> Node:
    """The same as a part of an envelope."""
    _plain(wanted)
    match wanted.kind:
        case "json_object":
            return Value({"type": "object"})
        case "json_schema":
            return Value(wanted.schema)
        case "regex" | "grammar":
            return Words("gbnf" if wanted.kind == "grammar" else "regex", wanted.text)
        case _:
            return Words("choice", choices=wanted.choices)


def _after_thinking(node: Node, thinking: ThinkState, vocabulary: Vocabulary) -> Node:
    assert thinking.tags is not None
    then = Seq((_BLANK_AFTER_THINKING, node))
    closers: Sequence[bytes] = dict.fromkeys(thinking.tags.closers())  # type: ignore[assignment]
    inside = Free(tuple(Branch(closer, then) for closer in closers))
    if thinking.starts:
        return inside
    opener = tag_bytes(thinking.tags.open, vocabulary)
    return Alt((Seq((Lit(opener), inside)), node))
