"""Steps for tests: sequences in one pool, whatever the batch and the chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from imp_server.backends.base import BLOCK_TOKENS, WANT_PROMPT_LOGITS, KvSpec, Step, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.step_builder import StepBuilder
from imp_server.models.source import ModelSource

from tests.backends.driver import logits_of

Ids = Sequence[int] | npt.NDArray[np.integer]


def open_backend(
    source: ModelSource,
    *,
    isa: str | None = None,
    n_threads: int = 1,
    kv: str = "bf16",
    n_blocks: int = 288,
    **options: Any,
) -> CpuBackend:
    backend = CpuBackend(source, isa=isa, n_threads=n_threads, **options)
    backend.allocate(KvSpec((n_blocks,) * len(source.architecture.cache_groups), kv))
    return backend


def table_of(row: int, n_tokens: int, n_groups: int = 1, spread: int = 7) -> list[npt.NDArray[np.int32]]:
    """Blocks of a row, not in order, disjoint from those of other rows (up to 128 tokens each by default)."""
    n = -(-n_tokens // BLOCK_TOKENS)
    base = row * n
    order = (np.arange(n) * spread) % n if np.gcd(spread, n) == 1 else np.arange(n)
    return [(base + order).astype(np.int32) for _ in range(n_groups)]


def step_of(
    chunks: Sequence[tuple[Ids, int, list[npt.NDArray[np.int32]], StepRow]], masks: npt.NDArray[np.uint32] | None = None
) -> Step:
    """Rows of (ids, first position, tables per group, what is wanted)."""
    builder = StepBuilder(len(chunks[0][2]))
    for ids, first, tables, row in chunks:
        builder.add_alone(replace(row), np.asarray(ids, dtype=np.int32), first, tables)
    return builder.finish(masks)


def logits_in_chunks(
    backend: CpuBackend, ids: Ids, chunk: int, row: int = 0, capacity: int = 0
) -> npt.NDArray[np.float32]:
    """Raw logits at every position of one sequence, prefilled `chunk` tokens at a time."""
    tables = table_of(row, capacity or len(ids), len(backend.architecture.cache_groups))
    out = []
    for first in range(0, len(ids), chunk):
        part = ids[first : first + chunk]
        result = backend.run(step_of([(part, first, tables, StepRow(WANT_PROMPT_LOGITS))]))
        out.append(logits_of(result.rows[0]))
    return np.concatenate(out)
