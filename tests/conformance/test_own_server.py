"""Our own server passes every case: all MUST and all SHOULD, nothing unclaimed."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import CleanRun


@pytest.mark.timeout(400)
def test_every_case_passes(clean_run: CleanRun) -> None:
    wrong = [
        f"{o.case.level} {o.case.id}: {o.verdict}: {o.detail}" for o in clean_run.outcomes if o.verdict != "passed"
    ]
    assert not wrong, "\n".join(wrong)
    assert len(clean_run.outcomes) >= 250
