"""The grammar that binds a request's output: the one place of text/ that asks grammar/ for it.

It binds the whole completion: thinking is free text up to its closer, then come the answer or the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from imp_server.core import (
    ChatRequest,
    GrammarBrokenOff,
    GrammarPlan,
    GrammarRefused,
    GrammarTooCostly,
    ResponseFormat,
    Segment,
)
from imp_server.grammar.binding import Binder
from imp_server.grammar.check import Rules, schema_plan
from imp_server.grammar.languages.envelope import Alt, Branch, Free, Lit, Node, Parts, Ref, Seq, Value, Words
from imp_server.grammar.plan import PlanPayload, make_plan
from imp_server.grammar.proving import PROVES_HERE, Prover
from imp_server.text.free_reply import free_reply
from imp_server.text.thinking import Mark, ThinkTags, spellings
from imp_server.text.tools.base import ToolFormat
from imp_server.text.tools.enforce import bound_tools, check_inputs, forced_calls, may_call_often, offered_tools

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


class BoundReply(NamedTuple):
    """The grammar of a reply, None where its text is free."""

    grammar: GrammarPlan | None = None
    opened: tuple[str, ...] = ()
    """Fields of the request whose schemas should be closed and are enforced by their letter (grammar/binding.py)."""


def leaves_text_free(chat: ChatRequest) -> bool:
    """Whether the reply may hold text of any kind."""
    return chat.output.response_format.kind == "text" and chat.tool_choice.mode != "required"


def constraint(
    chat: ChatRequest,
    mark: Mark,
    thinking: ThinkState,
    segments: Sequence[Segment],
    form: ToolFormat | None,
    template: str,
    rules: Rules,
    prover: Prover = PROVES_HERE,
) -> BoundReply:
    """Raises GrammarRefused, GrammarUnsatisfiable, InvalidRequest.

    `segments`: of the plan. `prover` is asked of each schema and of the whole; what takes time is done there alone.
    """
    check_inputs(chat.tools, prover)
    binder = Binder(rules, prover)
    return BoundReply(_constraint(chat, mark, thinking, segments, form, template, binder), binder.opened)


def _constraint(
    chat: ChatRequest,
    mark: Mark,
    thinking: ThinkState,
    segments: Sequence[Segment],
    form: ToolFormat | None,
    template: str,
    binder: Binder,
) -> GrammarPlan | None:
    tools = bound_tools(chat, offered_tools(chat), binder) if form is not None else []
    binder.prover.settle()  # what follows relies on schemas being schemas
    wanted = chat.output.response_format
    if not tools and wanted.kind == "text":
        return None
    tags = thinking.tags
    try:
        if not tools and tags is None:
            return _plain(wanted, binder)
        if leaves_text_free(chat):
            assert form is not None
            many = may_call_often(chat)
            sections = form.sections(tools, mark, template, many)
            turn = mark(_HARMONY_TURN) if tags is not None and tags.channels else b""
            node: Node = free_reply(segments, 1 if thinking.starts else 0, sections, many=many, turn=turn)
        else:
            answer = None if wanted.kind == "text" else _answer(wanted, binder)
            calls = forced_calls(chat, form, tools, mark, template) if tools and form is not None else None
            node = _bound(answer, calls, thinking, mark)
        plan = make_plan("envelope", PlanPayload(node=node, key_order=binder.rules.key_order))
        try:
            binder.prover.prove(plan)
        except GrammarTooCostly as dear:
            if isinstance(dear, GrammarBrokenOff) or not binder.loosen():
                raise
            # each of its schemas is served closed, and all of them together aren't
            return _constraint(chat, mark, thinking, segments, form, template, binder)
        binder.prover.settle()
        return plan
    except GrammarRefused as refused:
        if refused.param is None:
            refused.param = "tools" if tools else wanted.param
        raise


def bound_text(wanted: ResponseFormat, rules: Rules, prover: Prover = PROVES_HERE) -> BoundReply:
    """The grammar of a plain completion. Raises GrammarRefused, GrammarUnsatisfiable."""
    if wanted.kind == "text":
        return BoundReply()
    binder = Binder(rules, prover)
    try:
        return BoundReply(_plain(wanted, binder), binder.opened)
    except GrammarRefused as refused:
        refused.param = refused.param or wanted.param
        raise


def _plain(wanted: ResponseFormat, binder: Binder) -> GrammarPlan:
    order = binder.rules.key_order
    match wanted.kind:
        case "json_object":
            plan = schema_plan({"type": "object"}, key_order=order)
        case "json_schema":
            plan = schema_plan(binder.answer(wanted.schema, wanted.param), key_order=order)
        case "choice":
            plan = make_plan("choice", PlanPayload(choices=wanted.choices))
        case _:
            plan = make_plan("gbnf" if wanted.kind == "grammar" else wanted.kind, PlanPayload(text=wanted.text))
    binder.prover.prove(plan)
    binder.prover.settle()
    return plan


def _answer(wanted: ResponseFormat, binder: Binder) -> Node:
    """The same as a part of an envelope."""
    _plain(wanted, binder)
    match wanted.kind:
        case "json_object":
            return Value({"type": "object"})
        case "json_schema":
            return Value(binder.answer(wanted.schema, wanted.param))
        case "regex" | "lark":
            return Words(wanted.kind, wanted.text)
        case "grammar":
            return Words("gbnf", wanted.text)
        case _:
            return Words("choice", choices=wanted.choices)


def _bound(answer: Node | None, calls: Node | None, thinking: ThinkState, mark: Mark) -> Node:
    """A reply that is nothing but an answer or calls, perhaps behind thinking."""
    tags = thinking.tags
    lead = "" if tags is None or not tags.channels else _HARMONY_ANSWER
    options = [] if calls is None else [calls]
    if answer is not None:
        options.append(Seq((Lit(mark(lead)), answer)))
    node = options[0] if len(options) == 1 else Alt(tuple(options))
    if tags is None or not (thinking.starts or thinking.may):
        return node
    between = Lit(mark(_HARMONY_TURN)) if tags.channels else _BLANK_AFTER_THINKING
    closers = spellings((tags.close,), mark, tags)
    inside = Free(tuple(Branch(closer, Seq((between, Ref(0)))) for closer in closers))
    start = inside if thinking.starts else Alt((Seq((Lit(mark(tags.open)), inside)), Ref(0)))
    return Parts((node, start), start=1)
