"""Waiting for masks that another thread fills while the forward runs, for backends that sample on the host."""

from __future__ import annotations

import time

from imp_server.backends.base import MASK_PATIENCE_S, Step, StepRow
from imp_server.backends.host_queue import PlainStep

_POLL_S = 50e-6


def await_masks(step: Step | PlainStep, row: StepRow) -> tuple[int, float]:
    """(masks of the row that are filled, of its 1 + n_drafts, and the milliseconds that was waited for).

    0 = the row can't be sampled in this step.
    """
    wanted = 1 + row.n_drafts
    if step.mask_flags is None or row.mask_row < 0:
        return wanted, 0.0
    flags = step.mask_flags[row.mask_row : row.mask_row + wanted]
    if flags.all():
        return wanted, 0.0
    began_s = time.perf_counter()
    while not flags.all() and time.perf_counter() - began_s < MASK_PATIENCE_S:
        time.sleep(_POLL_S)
    n_ready = int(flags.argmin()) if not flags.all() else wanted
    return n_ready, 1e3 * (time.perf_counter() - began_s)
