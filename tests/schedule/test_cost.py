"""The cost table learns what a step costs and never plans far beyond what it has seen."""

from __future__ import annotations

import pytest
from imp_server.schedule.cost import CostTable


def test_before_any_measurement_the_guess_counts() -> None:
    assert CostTable(2.0).tokens_within(50.0) == 25
    assert CostTable(0.001).tokens_within(50.0) == 64


def test_it_learns_a_linear_cost() -> None:
    table = CostTable()
    for _ in range(20):
        n = table.tokens_within(100.0)
        table.observe(n, 20.0 + 0.5 * n)
        table.observe(1, 20.5)
    assert table.tokens_within(100.0) == pytest.approx(160, rel=0.1)
    assert table.estimate_ms(80) == pytest.approx(60, rel=0.1)


def test_one_jump_is_bounded() -> None:
    table = CostTable()
    table.observe(1, 0.01)
    assert table.tokens_within(1000.0) <= 4


def test_it_follows_a_change() -> None:
    table = CostTable()
    for _ in range(10):
        table.observe(64, 10.0)
    before = table.tokens_within(40.0)
    for _ in range(20):
        table.observe(64, 40.0)
    assert table.tokens_within(40.0) < before / 2


def test_more_tokens_never_seem_cheaper() -> None:
    table = CostTable()
    for n, ms in ((1, 30.0), (2, 10.0), (8, 20.0), (64, 15.0)):
        table.observe(n, ms)
    costs = [table.estimate_ms(n) for n in range(1, 200)]
    assert costs == sorted(costs)


def test_nothing_is_too_cheap_to_plan_one_token() -> None:
    table = CostTable()
    table.observe(1, 500.0)
    assert table.tokens_within(50.0) == 1
