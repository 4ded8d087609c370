"""Quick work is bounded: for each client, and for any number of new ones together."""

from __future__ import annotations

import pytest
from imp_server.core.credit import Credit, Credits


def test_an_account_is_overdrawn_by_one_payment_and_fills_up_again() -> None:
    credit = Credit(rate=0.1, most_s=1.0)
    assert credit.left_s(100.0) == 1.0
    credit.pay(1.5, 100.0)
    assert credit.left_s(100.0) == -0.5
    assert credit.left_s(106.0) == pytest.approx(0.1)
    assert credit.left_s(1000.0) == 1.0
    credit.pay(-5.0, 1000.0)
    assert credit.left_s(1000.0) == 1.0, "nobody saves up"
    assert credit.left_s(999.0) == 1.0, "a clock that goes back does no harm"


def test_new_clients_have_no_more_than_all_share() -> None:
    credits = Credits(own=(0.03, 0.1), shared=(0.08, 0.3))
    granted = sum(credits.grant(f"new {i}", 0.012, 0.05, i * 0.01) for i in range(2000))
    assert 0.9 * (0.3 + 0.08 * 20) < granted <= 0.3 + 0.08 * 20


def test_a_client_has_its_own_share_and_another_one_still_gets_its() -> None:
    credits = Credits(own=(0.03, 0.1), shared=(0.08, 0.3))
    had = sum(credits.grant("much", 0.012, 0.05, i * 0.01) for i in range(1000))
    assert 0.35 < had <= 0.1 + 0.03 * 10
    assert credits.grant("little", 0.012, 0.05, 10.0) == 0.05


def test_what_all_share_goes_in_quarters() -> None:
    credits = Credits(own=(0.0, 1.0), shared=(0.0, 0.16))
    assert [round(credits.grant(name, 0.01, 1.0, 0.0), 4) for name in "abc"] == [0.04, 0.03, 0.0225]
    for name in "defghijk":
        credits.grant(name, 0.01, 1.0, 0.0)
    assert credits.grant("l", 0.01, 1.0, 0.0) == 0.0


def test_the_last_half_is_for_those_who_had_little() -> None:
    credits = Credits(own=(0.0, 0.1), shared=(0.0, 1.0))
    for i in range(6):
        credits.pay(f"much {i}", 0.08, 0.0)
    assert credits.left_s("much 0", 0.0) == pytest.approx(0.02)
    credits.pay("much 6", 0.05, 0.0)
    assert credits.left_s("much 0", 0.0) <= 0.0
    assert credits.left_s("little", 0.0) == 0.1


def test_earning_fills_both_accounts_up_to_their_most() -> None:
    credits = Credits(own=(0.0, 0.1), shared=(0.0, 0.3))
    credits.earn("new", 5.0, 0.0)
    assert credits.left_s("new", 0.0) == 0.1
    credits.pay("a", 0.4, 0.0)
    assert credits.left_s("new", 0.0) == pytest.approx(-0.1) and credits.own_s("new", 0.0) == 0.1
    credits.earn("a", 0.35, 0.0)
    assert credits.left_s("a", 0.0) == pytest.approx(0.05)
    assert credits.left_s("new", 0.0) == 0.1


def test_the_oldest_client_is_forgotten() -> None:
    credits = Credits(own=(0.0, 1.0), shared=(0.0, 100.0), most_clients=2)
    for name in "abac":
        credits.pay(name, 0.5, 0.0)
    assert credits.left_s("a", 0.0) == 0.0 and credits.left_s("b", 0.0) == 1.0
