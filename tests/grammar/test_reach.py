"""Values that only a clever search finds possible: they are offered all the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.grammar.judging import accepts

KINDS = [f"kind{i}" for i in range(30)]
DISCRIMINATED: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"type": "string"}},
    "allOf": [
        {"if": {"properties": {"kind": {"const": kind}}}, "then": {"properties": {"value": {"const": kind + "!"}}}}
        for kind in KINDS
    ],
}
EXCLUSIVE: dict[str, Any] = {
    "oneOf": [
        {"type": "object", "properties": {name: {"type": "object"}}, "additionalProperties": False}
        for name in ("loadBalancer", "weighted", "mirroring")
    ]
}


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (
            DISCRIMINATED,
            [
                '{"kind": "kind7", "value": "kind7!"}',
                '{"value": "kind9!", "kind": "kind9"}',
                '{"kind": "x", "value": 1}',
            ],
            ['{"kind": "kind7", "value": "kind8!"}', '{"value": "kind9!", "kind": "kind8"}'],
        ),
        (EXCLUSIVE, ['{"weighted": {}}', '{"loadBalancer": {}}'], ["{}", '{"weighted": 1}', '{"other": {}}']),
    ],
    ids=["thirty constants of a discriminator", "objects told apart by their only key"],
)
def test_offered(schema: Any, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not accepts(schema, text)] == []
    assert [text for text in no if accepts(schema, text)] == []
