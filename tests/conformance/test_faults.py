"""The kit has teeth: each single fault put into our own server's replies is caught by at least one case."""

from __future__ import annotations

import pytest
from imp_server.conformance.run import run_case

from tests.conformance.bending import Fault
from tests.conformance.conftest import CleanRun
from tests.conformance.faults import FAULTS
from tests.conformance.tape import DivergedError, Player, untouched


def catchers(run: CleanRun, fault: Fault) -> tuple[int, list[str]]:
    """(exchanges that the fault changes, ids of the cases that fail by it)."""
    n_changed, caught = 0, []
    for outcome in run.outcomes:
        tape = run.tapes[outcome.case.id]
        changes = sum(fault.bend(exchange) != exchange for exchange in tape)
        n_changed += changes
        if not changes:
            continue
        try:
            if run_case(Player(tape, fault.bend), outcome.case, run.capabilities).verdict == "failed":
                caught.append(outcome.case.id)
        except DivergedError:
            pass
    return n_changed, caught


@pytest.mark.timeout(400)
def test_the_unbroken_tape_passes(clean_run: CleanRun) -> None:
    for outcome in clean_run.outcomes:
        player = Player(clean_run.tapes[outcome.case.id], untouched)
        assert run_case(player, outcome.case, clean_run.capabilities).verdict == outcome.verdict, outcome.case.id


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught(clean_run: CleanRun, fault: Fault) -> None:
    n_changed, caught = catchers(clean_run, fault)
    assert n_changed, "the fault changes nothing: its pattern is out of date"
    assert caught, f"{n_changed} replies are broken and no case notices"


def test_there_are_enough_and_they_differ() -> None:
    assert len(FAULTS) >= 60
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
