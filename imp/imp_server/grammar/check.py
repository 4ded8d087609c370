"""The check phase: a grammar as asked for -> a GrammarPlan, or a refusal that names keyword and JSON pointer.

Pure functions for a pool thread or a worker. Work is bounded in units and bytes (core/limits.py), not in time: the
same answer on a busy machine. A check does all that the first start of its grammar does, so what it accepts can be
started.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from imp_server.core import GrammarPlan, GrammarRefused, GrammarTooCostly, GrammarUnsatisfiable
from imp_server.core.limits import CHECK, CLOSED, QUESTION, Limit, bounded
from imp_server.core.turns import spend
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.stack import State, Stepper
from imp_server.grammar.frames.warm_up import warm_up
from imp_server.grammar.languages.definitions import definition_machine
from imp_server.grammar.languages.envelope import Free, Node, Parts, Raw, Ref, Value
from imp_server.grammar.machines.memo import alone
from imp_server.grammar.masks.distance import Distances
from imp_server.grammar.plain import nobody, plain_text
from imp_server.grammar.plan import (
    Begun,
    PlanPayload,
    begin,
    begin_envelope,
    envelope_frames,
    make_plan,
    nodes_of,
    schema_formula,
)
from imp_server.grammar.rehearsal import rehearse, rehearse_ending
from imp_server.grammar.values.algebra import TYPE_OF_KIND, has_surrogates
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.leaves import Contains, Items, Length, Names, Props, Required
from imp_server.grammar.values.sat.arrays import item_formula
from imp_server.grammar.values.sat.found import LONGEST, Found
from imp_server.grammar.values.sat.objects import value_formula
from imp_server.grammar.values.schema.closing import wants_closing, with_closing
from imp_server.grammar.values.schema.reading import deepest_place
from imp_server.grammar.values.subschema import Sub

MAX_SUBS = 20_000
MAX_DEPTH = 200
"""Levels gone through to find out which part of a schema is to blame."""
PARTS = 100_000
"""Units after which no further part of a schema is proved by itself."""


KeyOrder = Literal["any", "schema"]
Integers = Literal["digits", "any"]


class Rules(NamedTuple):
    """How an operator wants schemas to be checked."""

    key_order: KeyOrder = "any"
    extra_arguments: bool = False
    """Calls may hold keys that a tool doesn't declare."""
    extra_properties: bool = False
    """Answers may hold keys that their schema doesn't declare."""

    def of_answer(self, schema: Any) -> Any:
        """The schema as answers under it are bound."""
        return with_closing(schema, not self.extra_properties)

    def of_call(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema as arguments under it are bound."""
        bound: dict[str, Any] = with_closing(schema, not self.extra_arguments)
        return bound


DEFAULT = Rules()


def check_schema(
    schema: Any,
    *,
    integers: Integers = "digits",
    key_order: KeyOrder = "any",
) -> GrammarPlan:
    """A JSON Schema (object or boolean). Raises GrammarRefused, GrammarUnsatisfiable, naming the place in the message.

    `integers`: whether 1.0 may be written for the integer 1 (any), or digits alone. `key_order`: whether keys come in
    any order, or as the schema lists them, undeclared ones last.
    """
    try:
        text = _spelled(schema)
    except GrammarRefused as refused:
        raise placed(refused) from None
    plan = make_plan("json_schema", PlanPayload(schema=text, integers=integers, key_order=key_order))
    told = plain_text(text, nobody)
    if told is None or told.n_units > CHECK.n_units or told.n_bytes > CHECK.n_bytes:
        prove_schema(plan, schema, integers, key_order)
    return plan


def prove_schema(plan: GrammarPlan, schema: Any, integers: Integers, key_order: KeyOrder) -> int:
    """Bytes of a shortest value of the schema whose plan it is, about. Raises as check_schema."""
    try:
        with _limited("schema", CLOSED if wants_closing(schema) else CHECK):
            return _prove(schema, Space(n_locals=64), plan.digest, integers, key_order)
    except RecursionError:
        deepest = deepest_place(schema)
        raise GrammarRefused(f"the schema is nested too deeply (at #{deepest})", pointer=deepest) from None
    except GrammarRefused as refused:
        raise placed(refused) from None


def placed(refused: GrammarRefused) -> GrammarRefused:
    """The same, with the place in its message."""
    place = f"#{refused.pointer}"
    if place not in refused.message:
        refused.message += f" (at {place})"
        refused.args = (refused.message,)
    return refused


@contextmanager
def _limited(asked: Literal["schema", "pattern", "grammar"], limit: Limit = CHECK) -> Iterator[None]:
    """As `bounded`, with the budget of a check, on which it counts whatever it makes: nothing is there beforehand."""
    with bounded(limit.budget(), asked), alone():
        yield


def _prove(schema: Any, space: Space, digest: str, integers: str, key_order: str) -> int:
    """Some value satisfies the schema, and a reply under it can begin. Returns bytes of the shortest."""
    formula = schema_formula(space, schema, digest, integers, key_order)
    subs = _visit_all(space, formula.leaves())
    answer = space.solver.proved(lambda: space.solver.value(formula), formula)
    if answer is None:
        place = _culprit(space, formula, _has_no_value)
        raise GrammarUnsatisfiable(f"no value satisfies this schema (at #{place})", pointer=place)
    if answer.size > LONGEST:
        place = _culprit(space, formula, _is_too_long)
        message = f"the shortest value of this schema has more than {LONGEST} bytes (at #{place})"
        raise GrammarTooCostly(message, pointer=place)
    _prove_parts(space, subs)
    _start(space, Begun(space.values.start(space.store.goal(formula), True).id))
    return answer.size


IsCulprit = Callable[[Found | None], bool]


def _has_no_value(found: Found | None) -> bool:
    return found is None


def _is_too_long(found: Found | None) -> bool:
    return found is not None and found.size > LONGEST


def _culprit(space: Space, f: Formula, is_culprit: IsCulprit) -> str:
    """JSON pointer of the innermost part of `f` that is to blame by itself: what it demands of a member or an item."""
    place, part = "", [f]
    for f in part:
        place = space.algebra.place_of(f) or place
        part += [g for g in _demanded(space, f) if is_culprit(space.solver.value(g))][:1]
        if len(part) > MAX_DEPTH:
            break
    return place


def _demanded(space: Space, f: Formula) -> Iterator[Formula]:
    """What has to be there in each value of a formula that is about objects, or arrays, alone."""
    fs = space.algebra.formulas
    kinds = [kind for kind in TYPE_OF_KIND.values() if fs.restrict(f, kind) is not fs.false]
    leaves = [part.leaf for part in fs.restrict(f, kinds[0]).conjuncts()] if len(kinds) == 1 else []
    props = [leaf for leaf in leaves if isinstance(leaf, Props)]
    for name in sorted({name for leaf in leaves if isinstance(leaf, Required) for name in leaf.names}):
        yield value_formula(space.algebra, props, name)
    items = [leaf for leaf in leaves if isinstance(leaf, Items)]
    low = max((leaf.low for leaf in leaves if isinstance(leaf, Length)), default=0)
    for at in range(min(low, 1 + max((len(leaf.prefix) for leaf in items), default=0))):
        yield item_formula(space.algebra, items, at)


def _start(space: Space, begun: Begun) -> None:
    """What the engine does before the first token, but for the mask (engine.Matcher, places.Places)."""
    warm_up(space, begun.start)
    rehearse(space, begun.start)
    stepper = Stepper(space)
    bottom = stepper.cell(space.ends.root.id, None)
    rehearse_ending(stepper, Distances(stepper, {}), State(stepper.cell(begun.start, bottom)))


def schema_plan(schema: Any, *, integers: Integers = "digits", key_order: KeyOrder = "any") -> GrammarPlan:
    """What `check_schema` would return, unchecked. Raises GrammarRefused for what isn't JSON."""
    return make_plan("json_schema", PlanPayload(schema=_spelled(schema), integers=integers, key_order=key_order))


def _spelled(schema: Any) -> str:
    if not isinstance(schema, dict | bool):
        raise GrammarRefused("a JSON Schema must be an object or a boolean")
    try:
        return json.dumps(schema, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarRefused(f"the schema isn't JSON: {error}") from None


def check_regex(pattern: str) -> GrammarPlan:
    """A text that the regex matches as a whole."""
    return _check_words("regex", PlanPayload(text=pattern))


def check_gbnf(grammar: str) -> GrammarPlan:
    """A text of a GBNF grammar's rule `root`."""
    return _check_words("gbnf", PlanPayload(text=grammar))


def check_lark(grammar: str) -> GrammarPlan:
    """A text of a lark grammar's rule `start`."""
    return _check_words("lark", PlanPayload(text=grammar))


def check_definition(syntax: str, definition: str) -> None:
    """What a string's text may be bound to by the keyword x-imp-grammar. Raises GrammarRefused, naming the place."""
    with _limited("pattern" if syntax == "regex" else "grammar"):
        definition_machine(syntax, definition)


def check_choices(choices: Sequence[str]) -> GrammarPlan:
    """One of the texts."""
    if not choices or not all(isinstance(c, str) for c in choices):
        raise GrammarRefused("choices must be a non-empty list of strings")
    if any(has_surrogates(c) for c in choices):
        raise GrammarRefused("a choice with a lone surrogate can't be written")
    return _check_words("choice", PlanPayload(choices=tuple(choices)))


def _check_words(kind: str, normal: PlanPayload) -> GrammarPlan:
    plan = make_plan(kind, normal)
    with _limited("pattern" if kind == "regex" else "grammar"):
        space = Space(n_locals=64)
        _start(space, begin(plan, space))
    return plan


def check_envelope(node: Node, *, key_order: KeyOrder = "any") -> GrammarPlan:
    """Values, free and raw text between tags (envelope.py). Raises as check_schema for each schema inside."""
    plan = make_plan("envelope", PlanPayload(node=node, key_order=key_order))
    prove_around(plan.digest, node, (), key_order=key_order)
    return plan


def prove_around(digest: str, node: Node, apart: Container[str], *, key_order: KeyOrder = "any") -> tuple[str, ...]:
    """Prove the envelope with that digest as far as its values aren't proved `apart`, given by digests of their plans.

    Those stand for any value: what they cost is left out, and comes on top. Returns which of them it met. Raises as
    check_envelope.
    """
    with _limited("grammar"):
        return _prove_around(digest, node, apart, key_order)


def _prove_around(digest: str, node: Node, apart: Container[str], key_order: KeyOrder) -> tuple[str, ...]:
    left_out: dict[int, str] = {}
    for part in nodes_of(node):
        if isinstance(part, Value):
            own = schema_plan(part.schema, key_order=key_order).digest if apart else ""
            if own in apart:
                left_out[id(part)] = own
            else:
                check_schema(part.schema, key_order=key_order)
        elif isinstance(part, Free) and not all(b.tag for b in part.branches):
            raise GrammarRefused("a tag can't be empty")
        elif isinstance(part, Raw) and not part.closer:
            raise GrammarRefused("a closer can't be empty")
    space = Space(n_locals=64)
    goals = envelope_frames(space, node, digest, key_order, left_out)
    starts = [Ref(at) for at in (node.start, node.after_closing) if at >= 0] if isinstance(node, Parts) else [node]
    is_empty = any(goals.is_empty(part) for part in nodes_of(node))
    if is_empty or not goals.all_can_end(starts):
        raise GrammarUnsatisfiable("no text satisfies a raw parameter's schema")
    _start(space, begin_envelope(node, goals))
    return tuple(left_out.values())


def _prove_parts(space: Space, subs: Iterable[Sub]) -> None:
    """Whether what may stand in members and items has a value is decided now, as far as a check may take."""
    n_left = PARTS
    for f in _values_of(space, subs):
        if n_left <= 0:
            return
        budget = QUESTION.budget()
        with budget.spent():
            space.values.shortest(space.store.goal(f))
        n_left -= QUESTION.n_units - budget.n_units


def _values_of(space: Space, subs: Iterable[Sub]) -> Iterator[Formula]:
    """What subschemas ask of a value, and what several ask together of a property's value."""
    for sub in subs:
        yield sub.formula
        props = [part.leaf for part in sub.formula.conjuncts() if isinstance(part.leaf, Props)]
        if len(props) > 1:
            for name in dict.fromkeys(name for leaf in props for name in leaf.names):
                yield value_formula(space.algebra, props, name)


def _visit_all(space: Space, leaves: Any) -> Iterable[Sub]:
    """Expand everything reachable, so that what can't be enforced is refused now and not in mid-stream."""
    todo: list[Leaf] = list(leaves)
    seen: dict[Sub, None] = {}
    while todo:
        leaf = todo.pop()
        for sub in _subs(leaf):
            if sub not in seen:
                spend(2)
                seen[sub] = None
                if len(seen) > MAX_SUBS:
                    place = space.algebra.place_of(sub.formula) or ""
                    raise GrammarRefused(f"schema has more than {MAX_SUBS} reachable subschemas", pointer=place)
                todo += sub.formula.leaves()
    return seen


def _subs(leaf: Leaf) -> list[Sub]:
    if isinstance(leaf, Props):
        return [*leaf.names.values(), *(s for _, s in leaf.patterns), leaf.rest]
    if isinstance(leaf, Items):
        return [*leaf.prefix, leaf.rest]
    return [leaf.sub] if isinstance(leaf, Names | Contains) else []
