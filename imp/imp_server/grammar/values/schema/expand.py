"""A JSON Schema as a formula: every keyword becomes leaves, or the schema is refused by name. Nothing is ignored.

Unknown keywords are annotations (JSON Schema core 6.5). Drafts 4 to 7 are read where they spell things otherwise.
"""

from __future__ import annotations

import json
from typing import Any

from imp_server.core.turns import OverBudget, charge, spend
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.leaves import (
    NUMBER,
    STRING,
)
from imp_server.grammar.values.scalars import number_machine, string_machine
from imp_server.grammar.values.schema import container_keywords, unevaluated, value_keywords  # noqa: F401 (they register)
from imp_server.grammar.values.schema.document import RECURSIVE, At, Document
from imp_server.grammar.values.schema.reading import KEYWORDS, Expanding, refuse, try_machine
from imp_server.grammar.values.subschema import Sub

MAX_INPLACE_DEPTH = 200
N_BYTES = 400
"""Memory of what is kept of a subschema that was expanded."""


class Expander(Expanding):
    """Turns the subschemas of one document into formulas, each once."""

    def __init__(
        self, document: Document, algebra: Algebra, digest: str, integers: str = "digits", key_order: str = "any"
    ) -> None:
        """`digest` names the document: subschemas that depend on their place are known by it."""
        super().__init__(document, algebra, integers, key_order)
        self._digest = digest
        self._done: dict[tuple[Any, ...], Formula] = {}
        self._active: set[tuple[Any, ...]] = set()

    def root(self) -> Formula:
        return self.algebra.settled(self.raw_root())

    def raw_root(self) -> Formula:
        """As it was read."""
        return self.formula(self.document.root, self.document.start)

    def sub(self, schema: Any, at: At) -> Sub:
        if schema is True or schema == {}:
            return self.algebra.any
        if schema is False:
            return self.algebra.never
        if not isinstance(schema, dict):
            raise refuse("a schema must be an object or a boolean", at)
        if at.draft == 2020 and self.document.is_shared(schema):
            key: tuple[Any, ...] = (
                "content",
                self.integers,
                self.key_order,
                json.dumps(schema, sort_keys=self.key_order == "any"),
            )
        else:
            key = ("place", self._digest, id(schema), at.base, at.draft, at.scope)
        return self.algebra.sub(key, lambda: self.formula(schema, at))

    def formula(self, schema: Any, at: At) -> Formula:
        fs = self.algebra.formulas
        if isinstance(schema, bool):
            return fs.constant(schema)
        if not isinstance(schema, dict):
            raise refuse("a schema must be an object or a boolean", at)
        at = self.document.place(schema, at)
        key = (id(schema), at.base, at.scope)
        done = self._done.get(key)
        if done is not None:
            return done
        if key in self._active:
            raise refuse("$ref leads back to itself without entering a value", at)
        if len(self._active) > MAX_INPLACE_DEPTH:
            raise refuse(f"more than {MAX_INPLACE_DEPTH} references and combinations deep", at)
        self._active.add(key)
        try:
            spend(8 + len(schema))
            formula = self._expand(schema, at)
        except OverBudget as over:
            over.stands(at.pointer)
            raise
        finally:
            self._active.discard(key)
        charge(N_BYTES)
        self._done[key] = formula
        self.algebra.stands(formula, at.pointer)
        return formula

    def _expand(self, schema: dict[str, Any], at: At) -> Formula:
        if at.hides and "$ref" in schema:
            return self.reference("$ref", schema["$ref"], at)
        parts: list[Formula] = []
        for keyword in schema:
            read = KEYWORDS.get(keyword)
            if read is not None:
                parts.append(read(self, schema, at.down(keyword)))
        parts += [
            unevaluated.properties(self, schema, at),
            unevaluated.items(self, schema, at),
        ]
        formula = self.algebra.formulas.conj(parts)
        self._try_machines(formula, at)
        return formula

    def _try_machines(self, formula: Formula, at: At) -> None:
        """Combine what is asked of strings and numbers now, so that a product above its budget is refused here."""
        for kind, make in ((STRING, string_machine), (NUMBER, number_machine)):
            restricted = self.algebra.formulas.restrict(formula, kind)
            if restricted.args:
                try_machine(at, make, self.algebra, restricted)

    def target(self, keyword: str, reference: Any, at: At) -> tuple[Any, At]:
        if not isinstance(reference, str):
            raise refuse(f"{keyword} must be a string", at)
        schema, place = self.document.resolve(reference, at)
        fragment = reference.partition("#")[2]
        name = RECURSIVE if keyword == "$recursiveRef" else fragment
        anchors = self.document.dynamic_anchors
        if keyword == "$ref" or anchors.get(place.base, {}).get(name) is not schema:
            return schema, place
        outermost = self.document.outermost(place.scope, name) or place.base
        schema = anchors[outermost][name]
        return schema, self.document.place(schema, place._replace(base=outermost))

    def reference(self, keyword: str, reference: Any, at: At) -> Formula:
        schema, place = self.target(keyword, reference, at)
        return self.formula(schema, place)
