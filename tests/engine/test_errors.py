"""Every error of a request arrives on the other side as what it was."""

from __future__ import annotations

import pytest
from imp_server import core
from imp_server.engine.errors import error_from, failed, load_failed, rejected, user_fault

OF_REQUESTS = [
    core.InvalidRequest("m", param="n"),
    core.ContextLengthExceeded("m"),
    core.GrammarRefused("m"),
    core.GrammarUnsatisfiable("m"),
    core.NotFound("m"),
    core.Overloaded("m", retry_after_s=2.0),
    core.InternalError("m"),
    core.EngineFaulted("m"),
    core.EngineCrashed("m"),
    core.GrammarDeadEnd("m"),
    core.Draining("m"),
    core.Unavailable("m"),
    core.ModelLoading("m"),
]


@pytest.mark.parametrize("error", OF_REQUESTS, ids=lambda e: type(e).__name__)
def test_round_trip(error: core.ImpError) -> None:
    back = error_from(rejected(1, error))
    assert type(back) is type(error)
    assert (back.code, back.message, back.param, back.retry_after_s) == (
        error.code,
        error.message,
        error.param,
        error.retry_after_s,
    )
    assert type(error_from(failed(1, error))) is type(error)


def test_unknown_codes_keep_status_and_code() -> None:
    back = error_from(rejected(1, core.InvalidRequest("m", code="something_new")))
    assert (back.status, back.code) == (400, "something_new")


@pytest.mark.parametrize("kind", [core.InvalidModel, core.ModelFileMissing, core.CapacityExceeded, core.ConfigError])
def test_load_faults_keep_their_exit_code(kind: type[core.UserFault]) -> None:
    back = user_fault(load_failed(kind("m")))
    assert type(back) is kind and back.exit_code == kind.exit_code
