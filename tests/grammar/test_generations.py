"""The memory of grammars: given up generation by generation, never under a live row, and never narrowing a mask."""

from __future__ import annotations

import gc
import time
from itertools import chain
from typing import Any
from weakref import ref

import numpy as np
import pytest
from imp_server.core import GrammarMemoryFull, GrammarPlan, GrammarTooCostly
from imp_server.core.limits import QUESTION
from imp_server.core.turns import OutOfTurn, spend, turn
from imp_server.engine.constrained import masking
from imp_server.engine.constrained.constraint import Constraint
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.constrained.masking import Asker, MaskThread, Wanted
from imp_server.grammar.check import check_envelope, check_gbnf, check_lark, check_regex, check_schema, schema_plan
from imp_server.grammar.engine import GrammarSpace, Matcher, State
from imp_server.grammar.generations import N_GENERATIONS
from imp_server.grammar.languages.envelope import Branch, Free, Lit, Seq, Value
from imp_server.grammar.machines.memo import forgotten
from imp_server.grammar.places import Places
from imp_server.vocab.table import Vocabulary

BYTES = Vocabulary([bytes([i]) for i in range(256)], {})
EMPTY = GrammarSpace(BYTES).n_bytes
"""Of a generation in which no grammar lives."""


def schema(number: int, n_names: int = 12) -> Any:
    """A small one that nobody else sends."""
    names = {f"name{number}_{i}": {"type": "string", "maxLength": number + i, "minLength": i} for i in range(n_names)}
    return {"type": "object", "properties": names, "required": list(names)[:3]}


def advanced(matcher: Matcher, state: State, token_id: int) -> State:
    after = matcher.advance(state, token_id)
    assert after is not None
    return after


def walked(matcher: Matcher, n_tokens: int = 30) -> State:
    """A row under way, its masks on the way."""
    state = matcher.start
    for byte in matcher.way_out(state)[:n_tokens]:
        matcher.mask(state)
        state = advanced(matcher, state, byte)
    return state


def test_old_generations_make_room() -> None:
    most = N_GENERATIONS * (EMPTY + (1 << 18))
    shared = GrammarSpace(BYTES, n_bytes=most)
    peaks = []
    for number in range(15):
        walked(shared.matcher(check_schema(schema(number))))
        peaks.append(shared.n_bytes)
    one = GrammarSpace(BYTES)
    walked(one.matcher(check_schema(schema(0))))
    assert max(peaks) > most / 2
    assert max(peaks) < most + 2 * (one.n_bytes - EMPTY) + EMPTY


def test_what_a_live_row_stands_on_stays_and_counts() -> None:
    shared = GrammarSpace(BYTES, n_bytes=N_GENERATIONS * (EMPTY + (1 << 18)))
    plan = check_schema(schema(0))
    alone = GrammarSpace(BYTES).matcher(plan)
    row = shared.matcher(plan)
    state, same = walked(row), walked(alone)
    for number in range(1, 12):
        walked(shared.matcher(check_schema(schema(number))))
    assert row._generation is not shared.current
    for byte in row.way_out(state):
        assert np.array_equal(row.mask(state), alone.mask(same))
        state, same = advanced(row, state, byte), advanced(alone, same, byte)
    assert row.is_done(state)


def test_where_live_rows_fill_the_memory_new_grammars_are_refused_until_one_ends() -> None:
    shared = GrammarSpace(BYTES, n_bytes=N_GENERATIONS * EMPTY)
    rows: list[Matcher] = []

    def add() -> int:
        """The status of the refusal, if it was one."""
        try:
            rows.append(shared.matcher(check_schema(schema(len(rows)))))
        except GrammarMemoryFull as full:
            return full.status
        walked(rows[-1])
        return 200

    assert [status for _ in range(20) if (status := add()) != 200][:1] == [503]
    assert rows
    # one that is known needs no room
    assert shared.matcher(check_schema(schema(len(rows) - 1))).start is not None
    rows.clear()
    walked(shared.matcher(check_schema(schema(50))))


GRAMMARS: dict[str, Any] = {
    "members": lambda: check_schema(schema(0)),
    "a union": lambda: check_schema(
        {"oneOf": [{"properties": {"k": {"const": i}, "v": {"minLength": i}}, "required": ["k"]} for i in range(3)]}
    ),
    "conditions": lambda: check_schema(
        {"type": "object", "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "maxProperties": 3}
    ),
    "itself": lambda: check_schema({"type": "array", "items": {"$ref": "#"}, "uniqueItems": True}),
    "patterns": lambda: check_schema(
        {
            "type": "object",
            "patternProperties": {"^a(?!b)": {"pattern": "(?=.*x)y+"}},
            "propertyNames": {"maxLength": 9},
        }
    ),
    "looks": lambda: check_regex("(?=.*a)(?!.*b.c).*"),
    "words": lambda: check_gbnf('root ::= "a" root? | [b-d]{3,9}'),
    "lark": lambda: check_lark('start: start "a" | /[0-9]{2}/\n'),
    "a call": lambda: check_envelope(
        Free(
            (
                Branch(
                    b"<call>",
                    Seq((Value({"type": "object", "properties": {"x": {"type": "integer"}}}), Lit(b"</call>"))),
                ),
            )
        )
    ),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_giving_up_needs_no_search_for_cycles(name: str) -> None:
    """What is taken apart is free at once, and no piece of it keeps other threads for long."""
    plan = GRAMMARS[name]()
    kept = gc.garbage
    gc.collect()
    gc.disable()
    try:
        shared = GrammarSpace(BYTES)
        row = Places(shared.matcher(plan))
        place = row.start
        for byte in row.route(place)[:8]:
            row.mask(place)
            row.fitting(place, 40)
            after = row.step(place, byte)
            assert after is not None
            place = after
        generation = shared.current
        assert generation.users
        del row, place, after
        assert not generation.users
        longest = 0.0
        began = time.thread_time()
        for _ in chain(forgotten(), generation.given_up()):
            now = time.thread_time()
            longest, began = max(longest, now - began), now
        assert longest < 0.02
        del shared, generation
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(thing) for thing in kept if type(thing).__module__.startswith("imp_server.grammar")]
    finally:
        gc.set_debug(0)
        kept.clear()
        gc.enable()
    assert left == []


def test_a_row_that_ends_lets_go_of_its_grammar_at_once() -> None:
    plan = check_schema(schema(3))
    grammars = Grammars(BYTES)
    masks = MaskThread(BYTES.size, grammars)
    gc.collect()
    gc.disable()
    try:
        constraint = masks.start(plan, Asker()).result(20)
        masks.submit(Wanted(constraint, constraint.start, BYTES.end_ids)).result(20)
        row = ref(constraint)
        del constraint
        until = time.monotonic() + 10
        while row() is not None and time.monotonic() < until:
            time.sleep(0.001)  # the thread is just about to leave it
        assert row() is None
    finally:
        gc.enable()
        masks.stop()


def test_room_is_made_in_turns() -> None:
    """Who begins a grammar pays for it, and others come in between."""
    shared = GrammarSpace(BYTES, n_bytes=N_GENERATIONS * EMPTY)

    n_interrupted = 0
    for number in range(2 * N_GENERATIONS):
        plan = check_schema(schema(number, 3))
        for _ in range(60):
            try:
                with turn(200):
                    shared.matcher(plan)
                break
            except OutOfTurn:
                n_interrupted += shared._leaving is not None
        walked(shared.matcher(plan), 3)
    assert n_interrupted > 1


def test_a_known_grammar_is_found_in_an_old_generation() -> None:
    shared = GrammarSpace(BYTES, n_bytes=N_GENERATIONS * (EMPTY + (1 << 19)))
    plan = check_schema(schema(0))
    first = shared.matcher(plan)
    number = 0
    while shared.current is first._generation:
        number += 1
        walked(shared.matcher(check_schema(schema(number))))
    assert shared.matcher(plan).start is first.start


def test_a_grammar_that_takes_too_much_hurts_nobody_else() -> None:
    """That it is refused from then on is for the API process to remember: api/test_checks.py."""
    plan, other = check_schema(schema(1)), check_schema(schema(2))
    grammars = Grammars(BYTES)
    masks = MaskThread(BYTES.size, grammars)
    try:
        constraint = masks.start(plan, Asker()).result(20)
        behind = constraint.step(constraint.start, ord("{"))
        with pytest.raises(GrammarTooCostly):
            masks.call(costly, constraint, Asker()).result(20)
        assert masks.start(other, Asker()).result(20).start is not None
        assert constraint.mask(behind).any()
    finally:
        masks.stop()


@pytest.mark.parametrize("n_full", [2, 100])
def test_where_live_rows_fill_the_memory_a_new_grammar_waits(n_full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "ROOM_WAIT_S", 0.01)
    plan = check_schema(schema(3))
    grammars, n_tries = Grammars(BYTES), 0

    def make(plan: GrammarPlan) -> Constraint:
        nonlocal n_tries
        n_tries += 1
        if n_tries <= n_full:
            raise GrammarMemoryFull("full")
        return grammars(plan)

    masks = MaskThread(BYTES.size, make)
    try:
        started = masks.start(plan, Asker())
        if n_full == 2:
            assert started.result(20).start is not None and n_tries == 3
        else:
            with pytest.raises(GrammarMemoryFull):
                started.result(20)
            assert n_tries == 1 + masking.ROOM_TRIES
        n_before = n_tries
        left = masks.start(check_schema(schema(4)), Asker())
        left.cancel()
        time.sleep(0.05)
        assert n_tries <= n_before + 1, "nobody waits for it any more"
    finally:
        masks.stop()


def costly() -> None:
    for _ in range(QUESTION.n_units // 1000 + 1):
        spend(1000)


_BUSY_S = 300
"""For a thread on a machine that others keep busy for the better part of an hour."""


def soaked(n_schemas: int) -> list[int]:
    """Resident KiB behind each schema of many, as an engine meets them: their checks run elsewhere."""
    grammars = Grammars(BYTES, memory_mib=16)
    masks = MaskThread(BYTES.size, grammars)
    resident = []
    try:
        for number in range(n_schemas):
            constraint = masks.start(schema_plan(schema(number, 6))).result(_BUSY_S)
            place = constraint.start
            for byte in constraint.route(place)[:8]:
                masks.submit(Wanted(constraint, place, BYTES.end_ids)).result(_BUSY_S)
                place = constraint.step(place, byte)
            resident.append(_resident_kb())
    finally:
        masks.stop()
    return resident


def _resident_kb() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_five_thousand_schemas_end_where_five_hundred_stood() -> None:
    resident = soaked(5000)
    assert resident[-1] < 1.1 * resident[499]


def test_many_schemas_leave_no_more_than_the_budget() -> None:
    before = _resident_kb()
    resident = soaked(25)
    assert resident[-1] - before < 1.5 * (16 << 10)
