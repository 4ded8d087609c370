"""Closing refuses nothing that the letter serves: what takes too much closed is bound by its letter, and named."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.core import GrammarPlan, GrammarRefused, GrammarTooCostly, GrammarUnsatisfiable
from imp_server.core.limits import CHECK, CLOSED
from imp_server.grammar.binding import Binder
from imp_server.grammar.check import Rules, check_schema
from imp_server.grammar.relaxed import relaxed_schema
from imp_server.grammar.values.schema.closing import KEYWORD, with_closing

from tests.grammar import store
from tests.grammar.judging import byte_space, reads

A = {"type": "object", "properties": {"a": {"type": "integer"}}}


def tangled(n: int) -> dict[str, Any]:
    """`n` definitions of which each set applies in a place of its own: closed, it takes 2^n objects."""
    levels: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"}}
        for i in range(1, n)
    }
    either = {"anyOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}]}
    levels["d0"] = {"type": "object", "properties": {"a": either, "b": {"$ref": "#/$defs/d0"}}}
    return {"$ref": "#/$defs/d0", "$defs": levels | {f"d{n}": A}}


TANGLED = tangled(12)


def test_what_takes_too_much_closed_is_bound_by_its_letter() -> None:
    with pytest.raises(GrammarTooCostly):
        check_schema(with_closing(TANGLED, True))
    binder = Binder()
    assert binder.answer(TANGLED, "response_format") is TANGLED
    assert binder.call(TANGLED, "tools[1].function.parameters") is TANGLED
    assert binder.opened == ("response_format", "tools[1].function.parameters")
    m = byte_space().matcher(check_schema(TANGLED))
    assert reads(m, '{"b":{"a":{}},"z":1}') and not reads(m, '{"b":1}')


def test_others_are_closed() -> None:
    binder = Binder()
    assert binder.answer(A, "response_format") == {**A, KEYWORD: "closed"}
    assert binder.answer(tangled(5), "other")[KEYWORD] == "closed"
    assert not binder.opened
    assert Binder(Rules(extra_properties=True)).answer(A, "x") is A


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 1}, GrammarUnsatisfiable),
        ({"properties": {"a": {"$ref": "elsewhere.json"}}}, GrammarRefused),
        ({**TANGLED, KEYWORD: "closed"}, GrammarTooCostly),
    ],
)
def test_what_the_letter_refuses_is_refused(schema: Any, error: type[GrammarRefused]) -> None:
    """And what the client itself wants to be closed."""
    binder = Binder()
    with pytest.raises(error) as caught:
        binder.answer(schema, "response_format")
    assert type(caught.value) is error and not binder.opened


class Stingy:
    """A prover by whom all that is closed is refused."""

    def prove(self, plan: GrammarPlan) -> None:
        if KEYWORD.encode() in plan.payload:
            raise GrammarTooCostly("too much")

    def settle(self) -> None:
        pass


def test_what_closing_adds_nothing_to_is_not_called_open() -> None:
    binder = Binder(prover=Stingy())
    for schema in ({"type": "integer"}, True, {**A, "additionalProperties": False}):
        assert binder.answer(schema, "x") == schema
    assert not binder.opened


def test_a_refusal_of_both_is_no_more_than_one_second_s_work() -> None:
    """A unit takes about a microsecond."""
    assert CLOSED.n_units + CHECK.n_units <= 800_000


def test_loosened_nothing_is_closed() -> None:
    binder = Binder()
    assert not binder.loosen()
    binder = Binder()
    binder.answer(A, "a")
    assert binder.loosen() and not binder.loosen()
    assert binder.answer(A, "a") is A and binder.answer({**A, KEYWORD: "allow"}, "b")[KEYWORD] == "allow"
    assert binder.opened == ("a",)


def test_leniency_leaves_nothing_out_of_it() -> None:
    assert relaxed_schema(TANGLED) == (TANGLED, ())
    assert relaxed_schema(A, prover=Stingy()) == (A, ())


@pytest.mark.slow
def test_a_real_schema_that_is_dear_to_close_is_closed() -> None:
    [schema] = [one.schema for one in store.schemas() if one.name == "8382883d"]
    binder = Binder()
    assert binder.answer(schema, "x")[KEYWORD] == "closed" and not binder.opened


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_real_schemas_that_are_served_are_closed() -> None:
    n_served = 0
    opened: list[str] = []
    for one in store.schemas():
        binder = Binder()
        try:
            binder.answer(one.schema, one.name)
        except GrammarRefused:
            continue
        n_served += 1
        opened += binder.opened
    assert n_served > 4000 and not opened
