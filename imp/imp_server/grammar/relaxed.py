"""A schema without what can't be enforced, for operators who prefer that to a refusal. What is left out is named."""

from __future__ import annotations

import json
from typing import Any

from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.core.json_pointer import keys_of, pointer_to
from imp_server.grammar.binding import Binder
from imp_server.grammar.check import DEFAULT, Rules
from imp_server.grammar.proving import PROVES_HERE, Prover

MAX_BYTES = 256 << 10
"""Of a schema's JSON text: it is asked about anew for each keyword that is left out."""
MAX_LEFT_OUT = 50
"""Keywords left out of one schema; with more of them the last refusal stands."""
INVERTING = ("not", "if", "oneOf", "contains", "unevaluatedProperties", "unevaluatedItems")
"""Keywords inside which leaving something out could forbid values: they go as a whole."""


def relaxed_schema(schema: Any, rules: Rules = DEFAULT, prover: Prover = PROVES_HERE) -> tuple[Any, tuple[str, ...]]:
    """(a schema that can be enforced and allows at least what this one does, JSON pointers of what it leaves out).

    Raises GrammarRefused where nothing can be left out (a schema too complex, or not one), GrammarUnsatisfiable.
    """
    left_out: list[str] = []
    binder = Binder(rules, prover)
    while True:
        try:
            binder.answer(schema, None)
            prover.settle()
            return schema, tuple(left_out)
        except GrammarUnsatisfiable:
            raise
        except GrammarRefused as refusal:
            path = _path_to_leave(refusal.pointer or "")
            if len(left_out) == MAX_LEFT_OUT or not path:
                raise
            if not left_out:
                text = json.dumps(schema)
                if len(text) > MAX_BYTES:
                    raise
                schema = json.loads(text)
            if not _leave_out(schema, path):
                raise
            left_out.append(pointer_to(path))


def _path_to_leave(pointer: str) -> list[str]:
    path = keys_of(pointer)
    for at, key in enumerate(path):
        # a property may be called `not`, too
        if key in INVERTING and (at == 0 or path[at - 1] not in ("properties", "patternProperties", "$defs")):
            return path[: at + 1]
    return path


def _leave_out(schema: Any, path: list[str]) -> bool:
    """Take away what the path leads to; an item of a list becomes a schema that allows everything."""
    *way, last = path
    for key in way:
        if isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
            schema = schema[int(key)]
        elif isinstance(schema, dict) and key in schema:
            schema = schema[key]
        else:
            return False
    if isinstance(schema, list) and last.isdecimal() and int(last) < len(schema) and schema[int(last)] != {}:
        schema[int(last)] = {}
        return True
    return isinstance(schema, dict) and schema.pop(last, None) is not None
