"""The cost table learns what a step costs and never plans far beyond what it has seen."""

from __future__ import annotations

import pytest
from imp_server.schedule.cost import CostTable, VerifyCosts


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


def measured() -> VerifyCosts:
    costs = VerifyCosts()
    for n, ms in ((1, 10.0), (2, 11.0), (4, 12.0), (8, 16.0), (16, 24.0)):
        costs.observe(n, ms)
    return costs


def test_one_disturbed_step_hardly_counts() -> None:
    costs = measured()
    costs.observe(8, 500.0)
    assert costs.estimate_ms(8) < 18.0
    for _ in range(30):
        costs.observe(8, 32.0)
    assert costs.estimate_ms(8) == pytest.approx(32.0, rel=0.05), "what stays so is believed"


def test_sizes_that_are_not_measured_follow_the_machine() -> None:
    """Slow for a while, then fast again: the proportions, which decide about drafts, come out as they were."""
    costs = measured()
    for _ in range(60):
        costs.observe(1, 40.0)
    assert costs.estimate_ms(8) / costs.estimate_ms(1) == pytest.approx(1.6, rel=0.5)
    for _ in range(60):
        costs.observe(1, 10.0)
    assert costs.estimate_ms(1) == pytest.approx(10.0, rel=0.05)
    assert costs.estimate_ms(8) == pytest.approx(16.0, rel=0.3)


def test_proportions_that_change_are_learnt() -> None:
    costs = measured()
    for _ in range(60):
        costs.observe(1, 10.0)
        costs.observe(8, 60.0)
    assert costs.estimate_ms(8) / costs.estimate_ms(1) == pytest.approx(6.0, rel=0.2)


def test_rows_with_a_few_drafts_are_not_taken_for_rows_without() -> None:
    """A start on a busy machine: drafts beside eight rows seem to be free. What they cost is learnt from a few."""
    costs = VerifyCosts()
    for n, ms in ((1, 10.0), (2, 11.0), (4, 12.0), (8, 24.0), (16, 24.0), (32, 60.0)):
        costs.observe(n, ms)
    for n_tries in range(1, 41):
        costs.observe(8, 24.0)
        costs.observe(9, 30.0)
        if n_tries == 6:
            assert costs.estimate_ms(9) / costs.estimate_ms(8) > 1.05, "so much that none are tried"
    assert costs.estimate_ms(9) / costs.estimate_ms(8) == pytest.approx(1.25, rel=0.03)
    assert costs.estimate_ms(12) >= costs.estimate_ms(9)


def test_sizes_beyond_what_is_known_are_taken_as_measured() -> None:
    """Without a warm-up: the next size isn't judged by an extrapolation."""
    costs = VerifyCosts()
    costs.observe(1, 10.0)
    costs.observe(8, 16.0)
    assert costs.n_sizes == 2 and costs.estimate_ms(8) == 16.0


def test_large_sizes_share_classes() -> None:
    costs = VerifyCosts()
    costs.observe(1, 10.0)
    for n in range(2, 513):
        costs.observe(n, 10.0 + n)
    assert costs.n_sizes < 60
    assert costs.estimate_ms(300) == pytest.approx(310.0, rel=0.1)
