"""With --url: every case of the conformance kit against that server, one test each. A failed SHOULD is an xfail.

Without --url nothing is collected here: our own server's run is tests/conformance.
"""

from __future__ import annotations

import pytest
from imp_server.conformance.capabilities import Capabilities, probe
from imp_server.conformance.case import Case, load_cases
from imp_server.conformance.exchange import Target
from imp_server.conformance.run import run_case

from tests.live.conftest import AnyServer


@pytest.fixture(scope="session")
def target(any_server: AnyServer) -> Target:
    return Target(any_server.url, any_server.key)


@pytest.fixture(scope="session")
def capabilities(any_server: AnyServer, target: Target) -> Capabilities:
    return probe(target, any_server.model)


@pytest.mark.parametrize("case", load_cases(), ids=lambda case: case.id)
def test_case(target: Target, capabilities: Capabilities, case: Case) -> None:
    outcome = run_case(target, case, capabilities)
    if outcome.verdict in ("not claimed", "not applicable"):
        pytest.skip(f"{outcome.verdict}: {outcome.detail}")
    if outcome.verdict == "failed" and case.level == "SHOULD":
        pytest.xfail(outcome.detail)
    assert outcome.verdict == "passed", f"{case.requires}\n{outcome.detail}"
