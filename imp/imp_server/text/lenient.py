"""grammar.lenient: an answer's schema with parts that can't be enforced is served without them.

They are named to the client, and the finished text is held against the whole schema by a validator.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from imp_server.core import GrammarRefused, ResponseFormat
from imp_server.grammar.check import Rules
from imp_server.grammar.proving import PROVES_HERE, Prover
from imp_server.grammar.relaxed import relaxed_schema


class Leniency(NamedTuple):
    """What becomes of a response format."""

    format: ResponseFormat
    ignored: tuple[str, ...] = ()
    """JSON pointers of the parts of its schema that aren't enforced."""
    judge: Callable[[str], bool] | None = None
    """Whether a finished answer satisfies the whole schema; None if nothing is ignored."""


def lenient(wanted: ResponseFormat, rules: Rules, prover: Prover = PROVES_HERE) -> Leniency:
    """Raises GrammarRefused, GrammarUnsatisfiable: also where the validator can't read the schema either."""
    if wanted.kind != "json_schema":
        return Leniency(wanted)
    try:
        schema, ignored = relaxed_schema(wanted.schema, rules, prover)
        if not ignored:
            return Leniency(wanted)
        return Leniency(msgspec.structs.replace(wanted, schema=schema), ignored, judge_of(wanted.schema))
    except GrammarRefused as refused:
        refused.param = refused.param or wanted.param
        raise


def judge_of(schema: Any) -> Callable[[str], bool]:
    """Formats are asserted, as the grammar does. Raises GrammarRefused for what nobody can read."""
    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True, retriever=_never_fetched)
    except Exception as error:  # the library raises ValueError, ValidationError and its own errors alike
        raise GrammarRefused(f"the schema can't be validated, so no part of it can be ignored: {error}") from None

    def judge(text: str) -> bool:
        try:
            return validator.is_valid(json.loads(text))
        except (ValueError, RecursionError):
            return False

    return judge


def _never_fetched(uri: str) -> Any:
    raise ValueError(f"{uri} isn't fetched; inline it under $defs")
