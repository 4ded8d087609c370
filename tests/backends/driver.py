"""Runs sequences through any backend's `run` without an engine: builds tables and steps by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from imp_server.backends.base import (
    BLOCK_TOKENS,
    WANT_PROMPT_LOGITS,
    Backend,
    KvSpec,
    RowResult,
    StepRow,
)
from imp_server.backends.step_builder import StepBuilder


def logits_of(result: RowResult) -> npt.NDArray[np.float32]:
    """Those of a row that wanted some."""
    assert result.logits is not None
    return result.logits


@dataclass
class Lane:
    """A row of the test: its table (one per cache group) and how far it has come."""

    tables: list[np.ndarray[Any, Any]]
    n_done: int = 0
    logits: list[np.ndarray[Any, Any]] = field(default_factory=list)


class Driver:
    """Owner of the block allocation: sequences get shuffled blocks, so neighbours in memory are strangers."""

    def __init__(self, backend: Backend, *, n_blocks: int = 256, seed: int = 0) -> None:
        self.backend = backend
        groups = backend.architecture.cache_groups
        backend.allocate(KvSpec((n_blocks,) * len(groups), backend.info.default_kv_dtype))
        rng = np.random.default_rng(seed)
        self._free = [rng.permutation(n_blocks).tolist() for _ in groups]

    def sequence(self, capacity: int) -> Lane:
        columns = -(-capacity // BLOCK_TOKENS)
        return Lane([np.array([free.pop() for _ in range(columns)], dtype=np.int32) for free in self._free])

    def run(
        self, parts: Sequence[tuple[Lane, Sequence[int]]], rows: Sequence[StepRow] | None = None, **fields: Any
    ) -> list[RowResult]:
        """One step: each sequence gets its next ids. Without `rows`, raw logits of every position are wanted."""
        builder = StepBuilder(len(self._free))
        for (lane, chunk), row in zip(parts, rows or [StepRow(wants=WANT_PROMPT_LOGITS) for _ in parts], strict=True):
            builder.add_alone(row, np.asarray(chunk, dtype=np.int32), lane.n_done, lane.tables)
        results = self.backend.run(builder.finish(**fields)).rows
        for (sequence, chunk), result in zip(parts, results):
            sequence.n_done += len(chunk)
            if result.logits is not None:
                sequence.logits.append(result.logits)
        return results

    def logits(self, ids: Sequence[int], chunk: int) -> np.ndarray[Any, Any]:
        """Raw logits at every position of one sequence, run alone in chunks."""
        sequence = self.sequence(len(ids))
        for at in range(0, len(ids), chunk):
            self.run([(sequence, ids[at : at + chunk])])
        self.give_back(sequence)
        return np.concatenate(sequence.logits)

    def give_back(self, sequence: Lane) -> None:
        for free, table in zip(self._free, sequence.tables):
            free.extend(table.tolist())
