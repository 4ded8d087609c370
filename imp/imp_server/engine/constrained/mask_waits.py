"""Rows that wait for the mask thread: for a mask, or for a verdict on the token sampled last. They hold nobody else."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import Future
from typing import Any

from imp_server.backends.base import RowResult
from imp_server.engine.constrained.masking import MASK_GRACE_S, wait_for_all, wait_for_some
from imp_server.engine.live import LiveRow

_MASK_POLL_S = 0.005
"""How long the loop sleeps on the mask thread alone before it looks at its messages again: new rows wait as long."""


class MaskWaits:
    """Owner of who sits out the next step, and of the counts of that."""

    def __init__(
        self, counters: MutableMapping[str, float], clock: Callable[[], float], *, overlaps_masks: bool
    ) -> None:
        """`overlaps_masks`: the backend waits for masks that are filled while its forward runs."""
        self._counters = counters
        self._clock = clock
        self.overlaps_masks = overlaps_masks

    def hold_back(self, rows: Sequence[LiveRow], *, is_alone: bool) -> list[LiveRow]:
        """Mark the constrained rows that sit out the next step; those whose mask or verdict failed are returned.

        Waits a little for what isn't there, and longer if nobody else could run (`is_alone`: but for these rows).
        """
        missing = [(live, job) for live in rows if (job := self._missing(live)) is not None]
        if missing:
            if is_alone and len(missing) == len(rows):
                wait_for_some([job for _, job in missing], _MASK_POLL_S)
            # What takes long, or waits behind others' questions, the others would pay for with every step.
            wait_for_all([job for live, job in missing if not live.held_since_s and _is_quick(live)], MASK_GRACE_S)
        failed = []
        for live in rows:
            live.row.is_held_back = live.undecided is not None or self._missing(live) is not None
            self._note(live)
            job = live.grammar.job if live.grammar is not None else None
            if job is not None and job.done() and job.exception() is not None:
                failed.append(live)
        return failed

    def _missing(self, live: LiveRow) -> Future[Any] | None:
        """What the row has to wait for before its next step."""
        grammar = live.grammar
        assert grammar is not None
        if live.undecided is not None:
            return None if grammar.judging is None or grammar.judging.done() else grammar.judging
        if grammar.job.done() or (self.overlaps_masks and grammar.may_overlap and grammar.is_quick):
            return None
        return grammar.job

    def _note(self, live: LiveRow) -> None:
        if live.row.is_held_back and not live.held_since_s:
            live.held_since_s = self._clock()
            if live.grammar is not None and live.grammar.may_overlap:  # else it was counted when it came late
                self._counters["constrained_mask_waits_total"] += 1
        elif live.held_since_s and not live.row.is_held_back:
            self._counters["constrained_mask_wait_ms_total"] += 1e3 * (self._clock() - live.held_since_s)
            live.held_since_s = 0.0

    def note_sampled(self, live: LiveRow, result: RowResult) -> None:
        """The result of a row that was to be sampled under a mask."""
        assert live.grammar is not None
        if result.mask_wait_ms:
            self._counters["constrained_mask_waits_total"] += 1
            self._counters["constrained_mask_wait_ms_total"] += result.mask_wait_ms
        if result.mask_late:
            live.grammar.may_overlap = False
            return
        live.grammar.note_sampled()
        self._counters["constrained_samples_total"] += 1
        if result.on_host:
            self._counters[f'constrained_eager_fallback_total{{reason="{result.on_host}"}}'] += 1


def _is_quick(live: LiveRow) -> bool:
    return live.grammar is not None and live.grammar.is_quick
