"""A backend whose keys are hashes of the whole text up to them: what a row reads of another text is found for certain.

Text of a model of random weights hides such a fault unless it changes the likeliest token; here every wrong position is
a fault by itself. Logits depend on the hash, too, and mostly say one of a few words again, so that drafts are accepted.
"""

from __future__ import annotations

import numpy as np
from imp_server.backends.base import (
    BLOCK_TOKENS,
    BackendInfo,
    Int32s,
    KvSpec,
    Pending,
    RowResult,
    Step,
    StepResult,
    StepRow,
)
from imp_server.backends.host_queue import HostQueue, PlainStep
from imp_server.backends.host_sampling import row_results, wanted_positions
from imp_server.models.architecture import Architecture, CacheGroup
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]
_LONGEST = 4096
_FACTORS = np.cumprod(np.full(_LONGEST, 0x9E3779B97F4A7C15, dtype=np.uint64))
_N_NOISES = 499


class HashModel:
    """Implements backends/base.py `Backend`. Memory begins dirty. Owner of the faults it has seen."""

    def __init__(self, architecture: Architecture, *, salt: int = 0, waits_for_masks: bool = True) -> None:
        """`salt`: models with different ones mostly say the same and now and then another word."""
        self.architecture = architecture
        self.info = BackendInfo("hash", "", "f32", waits_for_masks=waits_for_masks)
        self.faults: list[str] = []
        self._queue = HostQueue(self._run)
        self._salt = salt
        self._pools: list[UInt64s] = []
        n_ids = architecture.vocab_size
        rng = np.random.default_rng(9)
        self._next = rng.permutation(n_ids)
        self._noises = rng.normal(0, 2, (_N_NOISES, n_ids)).astype(np.float32)

    def block_bytes(self, dtype: str) -> tuple[int, ...]:
        return (8 * BLOCK_TOKENS,) * len(self.architecture.cache_groups)

    def allocate(self, kv: KvSpec) -> None:
        self._queue.forget()
        self._pools = [np.full((n, BLOCK_TOKENS), 77, dtype=np.uint64) for n in kv.n_blocks]

    def launch(self, step: Step) -> Pending:
        return self._queue.launch(step)

    def run(self, step: Step) -> StepResult:
        return self.launch(step).collect()

    def on_host_reason(self, row: StepRow) -> str:
        return "mirostat" if row.sampler is not None and row.sampler.params.mirostat == 2 else ""

    def _run(self, step: PlainStep) -> list[RowResult]:
        hashes = np.concatenate([self._row(step, index) for index in range(len(step.rows))])
        wanted = wanted_positions(step)
        logits = np.empty((len(wanted.flat), self.architecture.vocab_size), dtype=np.float32)
        for n, flat in enumerate(wanted.flat.tolist()):
            logits[n] = self._logits(int(step.ids[flat]), int(hashes[flat]))
        return row_results(step, wanted, logits)

    def copy_blocks(self, group: int, pairs: Int32s) -> None:
        self._queue.move(lambda: self._copy(group, pairs))

    def _copy(self, group: int, pairs: Int32s) -> None:
        pool = self._pools[group]
        at_once, one_by_one = pool.copy(), pool.copy()
        at_once[pairs[:, 1]] = pool[pairs[:, 0]]
        for source, target in pairs.tolist():
            one_by_one[target] = one_by_one[source]
        if (at_once != one_by_one).any():
            self.faults.append("copies depend on their order")
        self._pools[group] = one_by_one

    def read_blocks(self, group: int, block_ids: Int32s) -> bytes:
        self._queue.finish()
        return self._pools[group][block_ids].tobytes()

    def write_blocks(self, group: int, block_ids: Int32s, data: bytes) -> None:
        self._queue.finish()
        self._pools[group][block_ids] = np.frombuffer(data, dtype=np.uint64).reshape(len(block_ids), -1)

    def load_adapter(self, path: str) -> int:
        raise NotImplementedError

    def unload_adapter(self, slot: int) -> None:
        raise NotImplementedError

    def close(self) -> None: ...

    def _row(self, step: PlainStep, index: int) -> UInt64s:
        """Writes the row's new positions; their hashes."""
        begin, end = int(step.row_starts[index]), int(step.row_starts[index + 1])
        sampler, start = step.rows[index].sampler, int(step.positions[begin])
        assert sampler is not None
        text = np.concatenate([sampler.history[:start], step.ids[begin:end]])
        true = hashes_of(text)
        n_own = end - begin - step.rows[index].n_drafts
        # A row still waits for an id where there was none to be sampled: nobody reads what it computes.
        is_void = step.rows[index].is_ahead
        if not is_void and not np.array_equal(text[: start + n_own], sampler.history[: start + n_own]):
            self.faults.append("a step's ids aren't the row's")
        for group, description in enumerate(self.architecture.cache_groups):
            self._check_seen(group, description, step.block_tables[group][index], true[:start])
            self._write(group, step.block_tables[group][index], start, true[start:])
        return true[start:]

    def _check_seen(self, group: int, description: CacheGroup, table: Int32s, true: UInt64s) -> None:
        first = max(0, len(true) - description.window + 1) if description.window else 0
        seen = np.arange(first, len(true))
        blocks = table[seen // BLOCK_TOKENS]
        if (blocks < 0).any():
            self.faults.append(f"group {group}: a position that is seen was given up")
        elif not np.array_equal(self._pools[group][blocks, seen % BLOCK_TOKENS], true[first:]):
            self.faults.append(f"group {group}: a position holds another text's key")

    def _write(self, group: int, table: Int32s, start: int, hashes: UInt64s) -> None:
        positions = np.arange(start, start + len(hashes))
        blocks = table[positions // BLOCK_TOKENS]
        if (blocks < 0).any():
            self.faults.append(f"group {group}: a position has no block to be written to")
            return
        self._pools[group][blocks, positions % BLOCK_TOKENS] = hashes

    def _logits(self, token_id: int, hashed: int) -> NDArray[np.float32]:
        own = (hashed ^ hashed >> 29) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        logits: NDArray[np.float32] = self._noises[(own >> 20) % _N_NOISES].copy()
        if (own >> 40) % 16 > (self._salt != 0):  # the draft model is wrong a little more often
            logits[self._next[token_id] % 23] += 9.0
        return logits


def hashes_of(ids: Int32s) -> UInt64s:
    """Of each beginning of the text."""
    return np.cumsum((ids.astype(np.uint64) + np.uint64(1)) * _FACTORS[: len(ids)], dtype=np.uint64)
