"""grammar.lenient: an answer's schema with parts that can't be enforced is served without them.

They are named to the client, and the finished text is held against the whole schema by a validator, in a process apart.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from imp_server.core import GrammarRefused, ResponseFormat
from imp_server.grammar.check import Rules
from imp_server.grammar.plan import PlanPayload
from imp_server.grammar.proving import PROVES_HERE, Prover
from imp_server.grammar.relaxed import relaxed_schema
from imp_server.grammar.whole_schema import validator_plan


class Leniency(NamedTuple):
    """What becomes of a response format."""

    format: ResponseFormat
    ignored: tuple[str, ...] = ()
    """JSON pointers of the parts of its schema that aren't enforced."""
    whole: str = ""
    """JSON text of the whole schema, for finished answers; empty if nothing is ignored."""


def lenient(wanted: ResponseFormat, rules: Rules, prover: Prover = PROVES_HERE) -> Leniency:
    """Raises GrammarRefused, GrammarUnsatisfiable: also where the validator can't read the schema either."""
    if wanted.kind != "json_schema":
        return Leniency(wanted)
    try:
        schema, ignored = relaxed_schema(wanted.schema, rules, prover)
        if not ignored:
            return Leniency(wanted)
        whole = validator_plan(wanted.schema)
        prover.prove(whole)
        prover.settle()
        text = msgspec.msgpack.decode(whole.payload, type=PlanPayload).schema
        return Leniency(msgspec.structs.replace(wanted, schema=schema), ignored, text)
    except GrammarRefused as refused:
        refused.param = refused.param or wanted.param
        raise
