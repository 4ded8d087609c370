"""The kit runs against a live imp in which one thing is broken, and notices each of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.config import Config
from imp_server.conformance.capabilities import Capabilities, probe
from imp_server.conformance.case import Case, load_cases
from imp_server.conformance.exchange import Target
from imp_server.conformance.run import run_case
from imp_server.engine.client.process import ProcessEngine

from tests.api.live_server import KEY, live_server
from tests.conformance.breaking import Break
from tests.conformance.breaks import BREAKS, THINKING_BREAKS
from tests.conformance.thinking import thinking_server
from tests.real_model import smollm2

CASES = load_cases()


@dataclass(frozen=True)
class Running:
    target: Target
    capabilities: Capabilities


@pytest.fixture(scope="session")
def running() -> Iterator[Running]:
    """imp in a thread of this process, where its functions can be replaced, with the real model in its engine."""
    config = Config.of({})
    settings = {"server.api_key": (KEY,)}
    with live_server(
        lambda: ProcessEngine(smollm2(), "m", config),
        lambda: ModelTextSide.load(smollm2(), config),
        settings=settings,
        check_replies=False,
    ) as live:
        target = Target(live.url, KEY)
        yield Running(target, probe(target))


def chosen(only: str) -> list[Case]:
    return [case for case in CASES if case.id.startswith(tuple(only.split(",")))]


def parametrized() -> list[Any]:
    """A part of them runs every time, drawn from every dialect; all of them in `make test-all`."""
    return [pytest.param(b, id=b.name, marks=() if i % 3 == 0 else pytest.mark.slow) for i, b in enumerate(BREAKS)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", parametrized())
def test_a_broken_imp_is_noticed(
    running: Running, fault: Break, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cases = chosen(fault.only)
    assert cases
    fault.put_in(monkeypatch)
    for case in cases:
        if run_case(running.target, case, running.capabilities).verdict == "failed":
            crashed = [record for record in caplog.records if record.levelno >= logging.ERROR]
            assert not crashed, "the fault doesn't do what it says: it crashes"
            return
    pytest.fail(f"none of {len(cases)} cases notices")


@pytest.fixture(scope="module")
def thinking() -> Iterator[Running]:
    with thinking_server(check_replies=False) as (target, capabilities):
        yield Running(target, capabilities)


@pytest.mark.parametrize("fault", THINKING_BREAKS, ids=lambda fault: fault.name)
def test_broken_thinking_is_noticed(thinking: Running, fault: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = chosen(fault.only)
    verdicts = [run_case(thinking.target, case, thinking.capabilities).verdict for case in cases]
    assert set(verdicts) == {"passed"}
    fault.put_in(monkeypatch)
    verdicts = [run_case(thinking.target, case, thinking.capabilities).verdict for case in cases]
    assert "failed" in verdicts


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_unbroken_it_passes_what_the_faults_are_judged_by(running: Running) -> None:
    """So a failure above is the fault's doing. Against `imp serve` all cases run in test_own_server.py."""
    prefixes = ",".join({fault.only for fault in BREAKS})
    outcomes = [run_case(running.target, case, running.capabilities) for case in chosen(prefixes)]
    assert not [f"{o.case.id}: {o.detail}" for o in outcomes if o.verdict == "failed"]


def test_there_are_enough_and_they_differ() -> None:
    assert len(BREAKS) >= 118 and len(BREAKS[::3]) >= 40
    assert len({fault.name for fault in BREAKS}) == len(BREAKS)
