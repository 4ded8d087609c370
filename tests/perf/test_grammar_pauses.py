"""The step loop doesn't stand still for grammars that begin beside live rows."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest
from imp_server.engine.child import SWITCH_INTERVAL_S
from imp_server.grammar.check import check_schema

from analysis.grammar_pauses import GOAL_MS, Setup, measured
from tests.grammar.hostile import VOCABULARY

DEAR = [
    {"type": "string", "allOf": [{"pattern": p} for p in (".*a.{6}b", "c.{5}d", ".*e.*f")]},
    {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^a{i}(b|c)*d"} for i in range(80)}},
    {"oneOf": [{"required": [f"a{i}"]} for i in range(30)], "properties": {f"a{i}": {} for i in range(30)}},
    {"type": "array", "uniqueItems": True, "minItems": 4, "items": {"enum": [f"word {i}" for i in range(400)]}},
]


@pytest.mark.slow
def test_no_step_waits_for_a_grammar_that_begins() -> None:
    grammars = [(f"{i}", check_schema(schema)) for i, schema in enumerate(DEAR)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # this and the frozen heap: as in an engine's process
    gc.collect()
    gc.freeze()
    try:
        pauses, counters = asyncio.run(measured(Setup(VOCABULARY), grammars, 8))
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
    assert len(pauses) > 100
    assert max(pause[0] for pause in pauses) < GOAL_MS
    assert counters["grammar_dead_ends_total"] == counters["grammar_blown_caps_total"] == 0
