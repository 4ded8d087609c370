"""Words that a text of a bounded length is to hold: a finished table, counted, and no dead ends."""

from __future__ import annotations

import itertools
import random

import pytest
from imp_server.core.limits import QUESTION
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.machines.lazy_product import counted_apart
from imp_server.grammar.machines.lengths import CountedTable
from imp_server.grammar.machines.machine import DEAD

from tests.grammar.test_masks import VOCABULARY, walk_states
from tests.grammar.test_regex import accepted


@pytest.mark.parametrize(("low", "high"), [(3, 4), (4, 5), (5, 5), (0, 6), (6, 9)])
def test_a_table_is_counted(low: int, high: int) -> None:
    words = ["ab", "ba", "éa"]
    parts = [*map(compile_regex, words), compile_regex(f"^[abé]{{{low},{high}}}$")]
    machine = counted_apart(parts, [compile_regex("aaa")])
    assert isinstance(machine, CountedTable)
    n_met = 0
    for text in (t for n in range(7) for t in map("".join, itertools.product("abé", repeat=n))):
        holds = low <= len(text) <= high and all(word in text for word in words) and "aaa" not in text
        n_met += holds
        assert accepted(machine, text) == holds, text
    assert n_met
    rng = random.Random(1)
    state = machine.start
    while state != DEAD:
        way = machine.shortest(state)
        assert way is not None
        end = state
        for byte in way:
            end = machine.step(end, byte)
        assert machine.accepts(end)
        state = rng.choice([s for b in range(256) if (s := machine.step(state, b)) != DEAD] or [DEAD])


def test_too_short_for_all_words_is_nothing() -> None:
    machine = counted_apart([compile_regex("ab"), compile_regex("ba"), compile_regex("^.{0,2}$")], [])
    assert machine is None or machine.start == DEAD


def test_masks_of_words_in_a_bounded_text_are_cheap() -> None:
    """Each state of their product was proved by a search: 146,000 units a mask with 49k ids, of 150,000."""
    pattern = "^(?=.*zz)(?=.*gh)(?=.*ek)(?=.*ba).{8,64}$"
    assert isinstance(compile_regex(pattern), CountedTable)
    shared, budget = GrammarSpace(VOCABULARY), QUESTION.budget()
    m = shared.matcher(check_schema({"type": "string", "pattern": pattern}))
    with budget.spent():
        for state in walk_states(m, random.Random(2), 10):
            shared.masks.row(state)
    assert QUESTION.n_units - budget.n_units < 40_000
