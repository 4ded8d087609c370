"""GrammarPlan: what the check hands to the engine, as plain data."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from imp_server.core import GrammarPlan, GrammarRefused
from imp_server.grammar.frames.space import Space
from imp_server.grammar.schema.document import Document
from imp_server.grammar.schema.expand import Expander


class Normal(msgspec.Struct, frozen=True):
    """The payload of a GrammarPlan."""

    schema: Any = None
    integers: str = "digits"
    text: str = ""
    choices: tuple[str, ...] = ()


def make_plan(kind: str, normal: Normal) -> GrammarPlan:
    payload = msgspec.msgpack.encode(normal)
    digest = hashlib.blake2b(kind.encode() + b"\0" + payload, digest_size=16).hexdigest()
    return GrammarPlan(kind=kind, digest=digest, payload=payload)


def begin(plan: GrammarPlan, space: Space) -> int:
    """The local in which a completion under the plan starts. Raises GrammarRefused for an unknown kind."""
    normal = msgspec.msgpack.decode(plan.payload, type=Normal)
    if plan.kind == "json_schema":
        formula = Expander(Document(normal.schema), space.algebra, plan.digest, normal.integers).root()
        return space.start(space.goal(formula), True).id
    raise GrammarRefused(f"unknown kind of grammar {plan.kind!r}")
