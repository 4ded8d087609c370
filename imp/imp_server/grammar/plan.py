"""GrammarPlan: what the check hands to the engine, as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import msgspec

from imp_server.core import GrammarPlan, GrammarRefused
from imp_server.core.turns import kept
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.scripts import PlannedFrames
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.verdicts import Verdicts
from imp_server.grammar.languages.choices import choices_machine
from imp_server.grammar.languages.definitions import definition_machine
from imp_server.grammar.languages.envelope import Alt, Free, Node, Parts, Raw, Ref, Repeat, Seq, Value, Words
from imp_server.grammar.machines.combine import anything
from imp_server.grammar.machines.machine import Machine
from imp_server.grammar.values.closed import closed_formula
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.leaves import STRING
from imp_server.grammar.values.scalars import string_machine
from imp_server.grammar.values.schema.closing import wants_closing
from imp_server.grammar.values.schema.document import Document
from imp_server.grammar.values.schema.expand import Expander
from imp_server.grammar.values.schema.plain_closing import plainly_closed


class PlanPayload(msgspec.Struct, frozen=True):
    """The payload of a GrammarPlan."""

    schema: str = ""
    """JSON text: its numbers may exceed 64 bits."""
    integers: str = "digits"
    key_order: str = "any"
    node: Node | None = None
    text: str = ""
    choices: tuple[str, ...] = ()


def make_plan(kind: str, normal: PlanPayload) -> GrammarPlan:
    try:
        payload = msgspec.msgpack.encode(normal)
    except (OverflowError, TypeError, UnicodeEncodeError) as error:
        raise GrammarRefused(f"the grammar holds something that JSON can't: {error}") from None
    digest = hashlib.blake2b(kind.encode() + b"\0" + payload, digest_size=16).hexdigest()
    return GrammarPlan(kind=kind, digest=digest, payload=payload)


class Begun(NamedTuple):
    """Locals: in which a completion starts, and in which one goes on whose thinking was closed by force (-1: none)."""

    start: int
    after_closing: int = -1


def begin(plan: GrammarPlan, space: Space) -> Begun:
    """Raises GrammarRefused for an unknown kind."""
    normal = msgspec.msgpack.decode(plan.payload, type=PlanPayload)
    if plan.kind == "json_schema":
        formula = schema_formula(space, json.loads(normal.schema), plan.digest, normal.integers, normal.key_order)
        return Begun(space.values.start(space.store.goal(formula), True).id)
    if plan.kind in ("regex", "choice", "gbnf", "lark"):
        verdicts = words_verdicts(space, Words(plan.kind, normal.text, normal.choices))
        return Begun(space.scalars.scalar(verdicts, verdicts.start).id)
    if plan.kind == "envelope" and normal.node is not None:
        frames = envelope_frames(space, normal.node, plan.digest, normal.key_order)
        return begin_envelope(normal.node, frames)
    raise GrammarRefused(f"unknown kind of grammar {plan.kind!r}")


def begin_envelope(node: Node, frames: PlannedFrames) -> Begun:
    if not isinstance(node, Parts):
        return Begun(frames.read(node, None))
    start = frames.read(Ref(node.start), None)
    return Begun(start, frames.read(Ref(node.after_closing), None) if node.after_closing >= 0 else -1)


def schema_formula(space: Space, schema: Any, digest: str, integers: str = "digits", key_order: str = "any") -> Formula:
    """What a schema asks, closed if it wants to be. Raises GrammarRefused."""
    wants = wants_closing(schema)
    plain = plainly_closed(schema) if wants else schema
    document = _document(space, digest, schema if plain is None else plain)
    expander = Expander(document, space.algebra, digest, integers, key_order)
    return closed_formula(space.solver, expander, digest) if plain is None else expander.root()


def _document(space: Space, digest: str, schema: Any) -> Document:
    if space.document is None or space.document[0] != digest:
        space.document = digest, Document(schema)
        kept()
    return space.document[1]


def words_verdicts(space: Space, words: Words) -> Verdicts:
    """Raises GrammarRefused if no text would do."""
    return space.verdicts.single(_words_machine(words), False)


def _words_machine(words: Words) -> Machine:
    return choices_machine(words.choices) if words.kind == "choice" else definition_machine(words.kind, words.text)


def envelope_frames(
    space: Space, node: Node, digest: str, key_order: str = "any", left_out: Container[int] = ()
) -> PlannedFrames:
    """The goals and machines of an envelope's nodes. Raises GrammarRefused.

    `left_out`: ids of Values that are taken for any value.
    """
    goals: dict[int, Goal] = {}
    machines: dict[int, Machine] = {}
    words: dict[int, Verdicts] = {}
    for number, part in enumerate(nodes_of(node)):
        if isinstance(part, Value):
            is_any = id(part) in left_out
            schema, own = True if is_any else part.schema, f"{digest}/{number}"
            goals[id(part)] = space.store.goal(schema_formula(space, schema, own, key_order=key_order))
        elif isinstance(part, Raw):
            formula = schema_formula(space, part.schema, f"{digest}/{number}")
            restricted = space.algebra.formulas.restrict(formula, STRING)
            free = restricted is space.algebra.formulas.true
            machines[id(part)] = anything() if free else string_machine(space.algebra, restricted)
        elif isinstance(part, Words):
            words[id(part)] = words_verdicts(space, part)
    return PlannedFrames(space.scripts, goals, machines, words, node.parts if isinstance(node, Parts) else ())


def nodes_of(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    below: tuple[Node, ...] = ()
    if isinstance(node, Seq | Parts):
        below = node.parts
    elif isinstance(node, Alt):
        below = node.options
    elif isinstance(node, Repeat):
        below = (node.part,)
    elif isinstance(node, Free):
        below = tuple(b.then for b in node.branches)
    for part in below:
        yield from nodes_of(part)
