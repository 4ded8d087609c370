"""Frames that native code makes equal those of the plain twin: same masks, forced text and ways out on every walk."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher, State
from imp_server.grammar.frames.objects import ObjectPhase
from imp_server.native import load_library

from tests.grammar.test_masks import VOCABULARY

pytestmark = pytest.mark.skipif(load_library("grammar") is None, reason="the native library isn't built")

TEXT, COUNT = {"type": "string"}, {"type": "integer"}
SCHEMAS: list[Any] = [
    {"type": "object"},
    {"type": "object", "maxProperties": 3, "properties": {"a": COUNT}},
    {"type": "object", "properties": {"a": COUNT, "ab": TEXT, "abc": {}}, "required": ["ab"]},
    {"type": "object", "properties": {"a": COUNT, "ab": TEXT}, "additionalProperties": False, "required": ["a"]},
    {"type": "object", "properties": {"only": TEXT}, "additionalProperties": False, "required": ["only"]},
    {"type": "object", "properties": {"a": False, "b": TEXT}, "required": ["b", "elsewhere"]},
    {"type": "object", "additionalProperties": COUNT, "required": ["x", "y"]},
    {"type": "object", "properties": {"": COUNT, "é": TEXT, 'q"': COUNT}, "additionalProperties": TEXT},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "object", "properties": {"a": COUNT}}}}},
    {"type": "object", "properties": {f"name{i}": COUNT for i in range(70)}, "additionalProperties": False},
    {"properties": {"a": COUNT}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"type": "object", "patternProperties": {"^a": COUNT}, "properties": {"b": {"enum": ["x", "yy", "yz"]}}},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"l": {"$ref": "#/$defs/t"}, "v": COUNT}}}},
]  # fmt: skip


def mask(m: Matcher, state: State) -> np.ndarray:
    row = np.zeros((VOCABULARY.size + 31) // 32, dtype=np.uint32)
    m.fill_mask(state, row)
    return row


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_native_frames_equal_the_plain_ones(schema: Any) -> None:
    plan = check_schema(schema)
    for seed in range(3):
        rng = random.Random(seed)
        ours, plain = (GrammarSpace(VOCABULARY, native=native).matcher(plan) for native in (True, False))
        a, b = ours.start, plain.start
        for _ in range(40):
            row = mask(ours, a)
            assert np.array_equal(row, mask(plain, b))
            assert ours.forced(a) == plain.forced(b)
            assert ours.is_done(a) == plain.is_done(b)
            assert ours.min_bytes(a) == plain.min_bytes(b)
            ids = [i for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")) if i < 300]
            if not ids:
                break
            # closing brackets and digits end a walk too early to see much
            chosen = int(rng.choice([i for i in ids if VOCABULARY.token_bytes[i] not in (b"}", b"]")] or ids))
            after, same = ours.advance(a, chosen), plain.advance(b, chosen)
            assert after is not None and same is not None
            a, b = after, same


def test_simple_objects_need_no_python_frame() -> None:
    """Otherwise the comparison above would compare the twin with itself."""
    space = GrammarSpace(VOCABULARY)
    m = space.matcher(check_schema(SCHEMAS[3]))
    state = m.advance_bytes(m.start, b'{"a":1,')
    assert state is not None
    before = {id(f) for f in space.space.locals.values()}
    mask(m, state)
    made = [f for f in space.space.locals.values() if id(f) not in before]
    assert not any(isinstance(f, ObjectPhase) for f in made)
    assert space.space.tables.n_locals > len(space.space.locals)


def test_more_locals_than_were_reserved() -> None:
    """Native code asks for larger tables and goes on with them."""
    from imp_server.grammar.frames.space import Space
    from imp_server.grammar.frames.stack import State as Configuration
    from imp_server.grammar.frames.stack import Stepper
    from imp_server.grammar.plan import begin

    space = Space(n_locals=16)
    stepper = Stepper(space)
    local = begin(check_schema(SCHEMAS[10]), space).start
    state = Configuration(stepper.cell(local, stepper.cell(space.ends.root.id, None)))
    text = "{" + ", ".join(f'"name{i}": {i}' for i in range(60)) + "}"
    after = stepper.run(state, text.encode())
    assert after is not None and stepper.is_done(after.cell)
    assert space.tables.n_locals > 256
