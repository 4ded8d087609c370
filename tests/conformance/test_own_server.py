"""Our own server passes every case: all MUST and all SHOULD, nothing unclaimed.

The real model of the tests doesn't think; the cases of models that do run with a scripted one that does.
"""

from __future__ import annotations

import pytest
from imp_server.conformance.case import load_cases
from imp_server.conformance.run import Outcome, run_case

from tests.conformance.conftest import CleanRun
from tests.conformance.thinking import thinking_server

THINKING = "reasoning"


@pytest.mark.timeout(400)
def test_every_case_passes(clean_run: CleanRun) -> None:
    outcomes = [outcome for outcome in clean_run.outcomes if THINKING not in outcome.case.needs]
    assert not told(outcomes)
    assert len(outcomes) >= 250


def told(outcomes: list[Outcome]) -> str:
    """Those that didn't pass."""
    wrong = [outcome for outcome in outcomes if outcome.verdict != "passed"]
    return "\n".join(f"{o.case.level} {o.case.id}: {o.verdict}: {o.detail}" for o in wrong)


def test_every_case_of_a_thinking_model_passes() -> None:
    with thinking_server() as (target, capabilities):
        cases = [case for case in load_cases() if THINKING in case.needs]
        outcomes = [run_case(target, case, capabilities) for case in cases]
    assert not told(outcomes)
    assert len(outcomes) >= 11
