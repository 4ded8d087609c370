"""Whether a grammar may be served, asked of its plan: here, or in a worker process that can be killed.

A verdict is a function of the plan, the rules and this code alone, so it may be remembered under `verdict_key`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container
from functools import cache
from typing import Literal, NamedTuple, Protocol

import msgspec

from imp_server import __version__
from imp_server.core import GrammarBrokenOff, GrammarPlan, GrammarRefused, GrammarTooCostly, GrammarUnsatisfiable
from imp_server.core.limits import CHECK
from imp_server.core.turns import ENDLESS, Budget
from imp_server.grammar.check import (
    Integers,
    KeyOrder,
    check_choices,
    check_definition,
    check_gbnf,
    check_lark,
    check_regex,
    prove_around,
    prove_schema,
    schema_plan,
)
from imp_server.grammar.languages.envelope import Lit, Seq, Value, Words
from imp_server.grammar.plain import Told, plain_envelope, plain_text
from imp_server.grammar.plan import PlanPayload, make_plan
from imp_server.grammar.whole_schema import read_whole


class Prover(Protocol):
    """Who is asked whether grammars may be served."""

    def prove(self, plan: GrammarPlan) -> None:
        """Raises GrammarRefused, GrammarUnsatisfiable; or takes note of the question until `settle`."""
        ...

    def settle(self) -> None:
        """All that was asked so far is proved when this returns. Raises whatever tells the caller to ask again."""
        ...


_DEFINITION = "definition"


class Refusal(msgspec.Struct, frozen=True):
    """A GrammarRefused as plain data."""

    kind: Literal["refused", "unsatisfiable", "too_costly", "broken_off"]
    message: str
    pointer: str = ""
    code: str = ""
    at: int | None = None

    def error(self) -> GrammarRefused:
        """A new one each time: whoever catches it adds where the request said so."""
        return _ERRORS[self.kind](self.message, pointer=self.pointer, code=self.code or None, at=self.at)


_ERRORS: dict[str, type[GrammarRefused]] = {
    "broken_off": GrammarBrokenOff,
    "too_costly": GrammarTooCostly,
    "unsatisfiable": GrammarUnsatisfiable,
    "refused": GrammarRefused,
}


class Verdict(msgspec.Struct, frozen=True):
    """What a proof found. `n_units`, `n_bytes`: what it took, which its start won't exceed.

    `shortest`: bytes of a shortest value of a schema, about.
    """

    refusal: Refusal | None = None
    n_units: int = 0
    n_bytes: int = 0
    shortest: int = 0
    apart: tuple[str, ...] = ()
    """Digests of plans of schemas that were left out: the plan is served if they are, and if the costs together fit."""


class ProofJob(msgspec.Struct, frozen=True):
    """Plans to be proved, each as if it were alone. `apart`: digests of schemas' plans that envelopes leave out."""

    plans: tuple[GrammarPlan, ...]
    apart: frozenset[str] = frozenset()


def definition_plan(syntax: str, definition: str) -> GrammarPlan:
    """What `check_definition` is asked, as a plan: no engine takes it."""
    return make_plan(_DEFINITION, PlanPayload(node=Words(syntax, definition)))


class Proof(NamedTuple):
    """Of a plan that is served. `apart`: which of the plans apart it left out; `shortest`: as of a Verdict."""

    apart: tuple[str, ...] = ()
    shortest: int = 0


def prove(plan: GrammarPlan, apart: Container[str] = ()) -> Proof:
    """Raises GrammarRefused, GrammarUnsatisfiable."""
    normal = msgspec.msgpack.decode(plan.payload, type=PlanPayload)
    match plan.kind:
        case "json_schema":
            asked = json.loads(normal.schema)
            return Proof((), prove_schema(plan, asked, _integers(normal.integers), _order(normal.key_order)))
        case "envelope" if normal.node is not None:
            return Proof(prove_around(plan.digest, normal.node, apart, key_order=_order(normal.key_order)))
        case "definition" if isinstance(normal.node, Words):
            check_definition(normal.node.kind, normal.node.text)
        case "validator":
            read_whole(normal.schema)
        case "choice":
            check_choices(normal.choices)
        case "regex":
            check_regex(normal.text)
        case "gbnf":
            check_gbnf(normal.text)
        case "lark":
            check_lark(normal.text)
        case _:
            raise GrammarRefused(f"unknown kind of grammar {plan.kind!r}")
    return Proof()


def verdict_at_once(plan: GrammarPlan, known: Callable[[GrammarPlan], Verdict | None]) -> Verdict | None:
    """What a proof would say, where counting is enough to tell (plain.py); None: it isn't.

    `known`: asked for the verdicts on schemas that are parts of it.
    """
    if plan.kind not in ("json_schema", "envelope"):
        return None
    normal = msgspec.msgpack.decode(plan.payload, type=PlanPayload)
    order = _order(normal.key_order)
    if normal.node is None:
        digits = _integers(normal.integers)
        found = plain_text(
            normal.schema, lambda part: _told(known(schema_plan(part, integers=digits, key_order=order)))
        )
        verdict = found and Verdict(None, *found)
    else:
        cost = plain_envelope(normal.node, lambda part: _told(known(schema_plan(part, key_order=order))))
        verdict = cost and Verdict(None, *cost)
    return verdict if verdict and verdict.n_units <= CHECK.n_units and verdict.n_bytes <= CHECK.n_bytes else None


def _told(verdict: Verdict | None) -> Told | None:
    if verdict is None or verdict.refusal is not None:
        return None
    return Told(verdict.n_units, verdict.n_bytes, verdict.shortest)


def _order(key_order: str) -> KeyOrder:
    return "schema" if key_order == "schema" else "any"


def _integers(integers: str) -> Integers:
    return "any" if integers == "any" else "digits"


class ProvesHere:
    """Asks in this process, with nothing remembered."""

    def prove(self, plan: GrammarPlan) -> None:
        prove(plan)

    def settle(self) -> None:
        pass


PROVES_HERE = ProvesHere()


def proved(data: bytes) -> bytes:
    """A job of worker processes: ProofJob -> one Verdict per plan, as msgpack."""
    job = msgspec.msgpack.decode(data, type=ProofJob)
    return msgspec.msgpack.encode([_verdict(plan, job) for plan in job.plans])


def _verdict(plan: GrammarPlan, job: ProofJob) -> Verdict:
    budget = Budget()
    try:
        with budget.spent():
            proof = prove(plan, job.apart)
    except GrammarRefused as error:
        return Verdict(_refusal(error))
    return Verdict(None, ENDLESS - budget.n_units, ENDLESS - budget.n_bytes, proof.shortest, proof.apart)


def _refusal(error: GrammarRefused) -> Refusal:
    kind = next(kind for kind, made in _ERRORS.items() if isinstance(error, made))
    return Refusal(kind, error.message, error.pointer, error.code, error.at)  # type: ignore[arg-type]


def warm_up() -> None:
    """Have everything in memory that common checks need, before worker processes are forked."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^a+$"},
            "b": {"type": "array", "items": {"enum": ["x", 1, None]}, "maxItems": 3},
            "c": {"type": "integer", "minimum": 3},
            "d": {"anyOf": [{"$ref": "#/$defs/d"}, {"type": "number"}]},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"d": {"type": "object", "properties": {"e": {"type": "boolean"}}}},
    }
    whole = make_plan("envelope", PlanPayload(node=Seq((Lit(b"<"), Value(schema), Lit(b">")))))
    for _ in range(3):
        prove(whole)
        check_regex(r"[a-c]+\d{2}\p{L}")


@cache
def _code_version() -> str:
    return f"{__version__}/4"


def verdict_key(kind: str, digest: str) -> bytes:
    """Of a plan; 16 bytes."""
    told = f"{_code_version()}/{kind}/{digest}"
    return hashlib.blake2b(told.encode(), digest_size=16).digest()
