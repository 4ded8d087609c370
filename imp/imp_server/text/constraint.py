"""The grammar that binds a request's output: the one place of text/ that asks grammar/ for it.

It binds the whole completion: thinking is free text up to its closer, then come the answer or the calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from imp_server.core import ChatRequest, GrammarPlan, GrammarRefused, ResponseFormat
from imp_server.grammar.check import (
    Rules,
    check_choices,
    check_envelope,
    check_gbnf,
    check_json_object,
    check_regex,
    check_schema,
)
from imp_server.grammar.envelope import Alt, Branch, Free, Lit, Node, Seq, Value, Words
from imp_server.text.thinking import Mark, ThinkTags
from imp_server.text.tools.base import ToolFormat
from imp_server.text.tools.enforce import bound_tools, calls_node, offered_tools

_BLANK_AFTER_THINKING: Node = Alt((Lit(b"\n\n"), Lit(b"\n"), Seq(())))
_HARMONY_TURN = "<|start|>assistant"
_HARMONY_ANSWER = "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True)
class ThinkState:
    """Whether a reply may think before its bound part."""

    tags: ThinkTags | None
    starts: bool
    """The prompt ends inside thinking."""
    may: bool
    """The model may open thinking by itself."""


def constraint(
    chat: ChatRequest,
    mark: Mark,
    thinking: ThinkState,
    form: ToolFormat | None,
    template: str,
    rules: Rules,
) -> GrammarPlan | None:
    """None if the request leaves the output free. Raises GrammarRefused, GrammarUnsatisfiable, InvalidRequest."""
    tools = bound_tools(chat, offered_tools(chat), rules.work) if form is not None else []
    wanted = chat.response_format
    if not tools and wanted.kind == "text":
        return None
    tags = thinking.tags
    try:
        if not tools and tags is None:
            return _plain(wanted, rules)
        answer = None if wanted.kind == "text" else _answer(wanted, rules)
        calls = None
        if tools:
            assert form is not None
            calls = calls_node(chat, form, tools, mark, template)
        if tags is not None and tags.channels:
            return check_envelope(
                _in_channels(answer, calls, thinking, mark), key_order=rules.key_order, work=rules.work
            )
        options = [node for node in (calls, answer) if node is not None]
        node = options[0] if len(options) == 1 else Alt(tuple(options))
        return check_envelope(_after_thinking(node, thinking, mark), key_order=rules.key_order, work=rules.work)
    except GrammarRefused as refused:
        if refused.param is None:
            refused.param = "tools" if tools else wanted.param
        raise


def bound_text(wanted: ResponseFormat, rules: Rules) -> GrammarPlan | None:
    """The grammar of a plain completion. Raises GrammarRefused, GrammarUnsatisfiable."""
    if wanted.kind == "text":
        return None
    try:
        return _plain(wanted, rules)
    except GrammarRefused as refused:
        refused.param = refused.param or wanted.param
        raise


def _plain(wanted: ResponseFormat, rules: Rules) -> GrammarPlan:
    match wanted.kind:
        case "json_object":
            return check_json_object()
        case "json_schema":
            return check_schema(wanted.schema, key_order=rules.key_order, work=rules.work)
        case "regex":
            return check_regex(wanted.text)
        case "grammar":
            return check_gbnf(wanted.text)
        case _:
            return check_choices(wanted.choices)


def _answer(wanted: ResponseFormat, rules: Rules) -> Node:
    """The same as a part of an envelope."""
    _plain(wanted, rules)
    match wanted.kind:
        case "json_object":
            return Value({"type": "object"})
        case "json_schema":
            return Value(wanted.schema)
        case "regex" | "grammar":
            return Words("gbnf" if wanted.kind == "grammar" else "regex", wanted.text)
        case _:
            return Words("choice", choices=wanted.choices)


def _after_thinking(node: Node, thinking: ThinkState, mark: Mark) -> Node:
    tags = thinking.tags
    if tags is None or not (thinking.starts or thinking.may):
        return node
    inside = Free((Branch(mark(tags.close), Seq((_BLANK_AFTER_THINKING, node))),))
    if thinking.starts:
        return inside
    return Alt((Seq((Lit(mark(tags.open)), inside)), node))


def _in_channels(answer: Node | None, calls: Node | None, thinking: ThinkState, mark: Mark) -> Node:
    """Harmony: every part of a reply is a message with a header of its own.

    Free text with calls in it holds the headers as text: nothing else is bound then.
    """
    assert thinking.tags is not None
    if isinstance(calls, Free) and answer is None:
        return calls

    def parts(lead: str) -> Node:
        options: list[Node] = []
        if calls is not None:
            options.append(Seq((Lit(mark(lead)), calls)) if lead else calls)
        if answer is not None:
            options.append(Seq((Lit(mark(lead + _HARMONY_ANSWER)), answer)))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    inside = Free((Branch(mark(thinking.tags.close), parts(_HARMONY_TURN)),))
    if thinking.starts:
        return inside
    return Alt((Seq((Lit(mark(thinking.tags.open)), inside)), parts(""))) if thinking.may else parts("")
