"""A schema as a validator reads it, with all that a grammar can't enforce: for text that is there (text/lenient.py).

The validator is a library's, and its regexes search by trying; so where the schema is a stranger's it runs in a worker
process (workers/).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from imp_server.core import GrammarPlan, GrammarRefused
from imp_server.grammar.plan import PlanPayload, make_plan

KIND = "validator"
JOB = "imp_server.grammar.whole_schema:judged"


class Unjudged(msgspec.Struct, frozen=True):
    """A finished answer, and the JSON text of the schema that it was asked for."""

    schema: str
    answer: str


def validator_plan(schema: Any) -> GrammarPlan:
    """The question whether a validator can read a schema, as a plan: no engine takes it. Raises GrammarRefused."""
    try:
        return make_plan(KIND, PlanPayload(schema=json.dumps(schema, allow_nan=False)))
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarRefused(f"the schema isn't JSON: {error}") from None


def read_whole(schema: str) -> Any:
    """The validator of a JSON text. Formats are asserted, as the grammar does. Raises GrammarRefused."""
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(json.loads(schema), validate_formats=True, retriever=_never_fetched)
    except Exception as error:  # the library raises ValueError, ValidationError and its own errors alike
        raise GrammarRefused(f"the schema can't be validated, so no part of it can be ignored: {error}") from None


def satisfies(asked: Unjudged) -> bool:
    """Whether the answer satisfies the whole schema."""
    try:
        return bool(read_whole(asked.schema).is_valid(json.loads(asked.answer)))
    except (ValueError, RecursionError, GrammarRefused):
        return False


def judged(data: bytes) -> bytes:
    """A job of worker processes: an Unjudged as msgpack -> one byte, 1 where it satisfies."""
    return bytes([satisfies(msgspec.msgpack.decode(data, type=Unjudged))])


def _never_fetched(uri: str) -> Any:
    raise ValueError(f"{uri} isn't fetched; inline it under $defs")
