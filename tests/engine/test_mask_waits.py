"""How long a step waits for masks."""

from __future__ import annotations

from collections import defaultdict
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
    grammar = SimpleNamespace(job=job, judging=None, may_overlap=False, is_quick=True)
    row = SimpleNamespace(is_held_back=False)
    live: Any = SimpleNamespace(grammar=grammar, undecided=None, row=row, held_since_s=0.0)
    waits = MaskWaits(defaultdict(float), lambda: 1.0, overlaps_masks=True)
    for _ in range(3):
        assert not waits.hold_back([live], is_alone=False) and row.is_held_back
    assert waited == [[job], [], []]
    job.set_result(None)
    assert not waits.hold_back([live], is_alone=False) and not row.is_held_back


def test_a_mask_that_waits_behind_those_of_others_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[list[Any]] = []
    monkeypatch.setattr(mask_waits, "wait_for_all", lambda jobs, _timeout_s: waited.append(list(jobs)))
    grammar = SimpleNamespace(job=Future(), judging=None, may_overlap=True, is_quick=False)
    row = SimpleNamespace(is_held_back=False)
    live: Any = SimpleNamespace(grammar=grammar, undecided=None, row=row, held_since_s=0.0)
    waits = MaskWaits(defaultdict(float), lambda: 1.0, overlaps_masks=True)
    assert not waits.hold_back([live], is_alone=False) and row.is_held_back and waited == [[]]
    grammar.is_quick = True
    waits.hold_back([live], is_alone=False)
    assert not row.is_held_back, "it is filled under the row's own forward"


def test_new_requests_do_not_wait_for_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all rows wait for theirs, the loop looks at its messages again soon."""
    timeouts: list[float] = []
    monkeypatch.setattr(mask_waits, "wait_for_some", lambda _jobs, timeout_s: timeouts.append(timeout_s))
    grammar = SimpleNamespace(job=Future(), judging=None, may_overlap=False, is_quick=False)
    live: Any = SimpleNamespace(
        grammar=grammar, undecided=None, row=SimpleNamespace(is_held_back=False), held_since_s=0.0
    )
    MaskWaits(defaultdict(float), lambda: 1.0, overlaps_masks=True).hold_back([live], is_alone=True)
    assert timeouts and timeouts[0] <= 0.01
