"""Steps that are run before the first request: they fault memory in, and fill the cost tables."""

from __future__ import annotations

import time

import numpy as np

from imp_server.backends.base import BLOCK_TOKENS, WANT_SAMPLE, Backend, KvSpec, StepRow
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.schedule.cost import CostTable

_WARM_SIZES = (1, 2, 4, 8, 16, 64)
"""One of each class of steps that a backend may give its own number of threads."""
_WARM_RUNS = 3
"""The first meets cold memory; the others are what a backend on two threads needs to know both counts."""
_WARM_DRAFTS = (0, 1, 3, 7, 15, 31)
"""Lengths of drafts whose verification is measured."""


def measure_drafts(backend: Backend, kv: KvSpec, decode_costs: CostTable, context: int) -> None:
    """What verifying a draft costs: all its positions are sampled, other than those of a prompt."""
    room = min([context, *(n * BLOCK_TOKENS for n in kv.n_blocks)])
    lengths = [n for n in _WARM_DRAFTS if n < room]
    # Size by size, a neighbour's moment of load would make one of them seem dear and the next one free.
    rounds = [[_timed_step(backend, 1 + n, n) for n in lengths] for _ in range(_WARM_RUNS)]
    for n, times in zip(lengths, zip(*rounds)):
        decode_costs.observe(1 + n, min(times))


def warm_up(backend: Backend, kv: KvSpec, costs: CostTable, context: int) -> None:
    """Run a few steps over memory that nobody holds yet, to fault pages in and to learn what steps cost."""
    for size in _WARM_SIZES:
        if size > context or any(n * BLOCK_TOKENS < size for n in kv.n_blocks):
            return
        costs.observe(size, min(_timed_step(backend, size) for _ in range(_WARM_RUNS)))


def _timed_step(backend: Backend, size: int, n_drafts: int = 0) -> float:
    """Milliseconds of one row's step of `size` positions, the last 1 + n_drafts of them sampled."""
    n_columns = -(-size // BLOCK_TOKENS)
    ids = np.zeros(size, dtype=np.int32)
    state = SamplerState(SamplingParams(temperature=0.0), 0, ids[: size - n_drafts], size + 1)
    row = StepRow(wants=WANT_SAMPLE, n_drafts=n_drafts, sampler=state)
    kinds = [group.kind for group in backend.architecture.cache_groups]
    tables = [np.arange(1 if kind == "state" else n_columns, dtype=np.int32) for kind in kinds]
    builder = StepBuilder(len(kinds))
    builder.add_alone(row, ids, 0, tables)
    step = builder.finish()
    began = time.perf_counter()
    backend.run(step)
    return 1e3 * (time.perf_counter() - began)
