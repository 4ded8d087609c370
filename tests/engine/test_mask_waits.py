"""How long a step waits for masks."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from imp_server.engine.constrained import mask_waits
from imp_server.engine.constrained.mask_waits import MaskWaits


def test_a_mask_that_was_late_once_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[list[Any]] = []
    monkeypatch.setattr(mask_waits, "wait_for_all", lambda jobs, _timeout_s: waited.append(list(jobs)))
    job: Future[Any] = Future()
    grammar = SimpleNamespace(job=job, judging=None, may_overlap=False)
    row = SimpleNamespace(is_held_back=False)
    live: Any = SimpleNamespace(grammar=grammar, undecided=None, row=row, held_since_s=0.0)
    waits = MaskWaits(Counter(), lambda: 1.0, overlaps_masks=True)
    for _ in range(3):
        assert not waits.hold_back([live], 2) and row.is_held_back
    assert waited == [[job], [], []]
    job.set_result(None)
    assert not waits.hold_back([live], 2) and not row.is_held_back
