"""A backend whose layers are a recurrent state and a full cache: every logit depends on every token before it.

A slot that wasn't reset, restored or copied right, or a position run twice, gives other tokens; a block that holds
another prefix's contents raises.
"""

from __future__ import annotations

from typing import Any

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

from tests.backends.array_source import tiny

GROUPS = (CacheGroup("full", ()), CacheGroup("state", ()))
MODULUS = (1 << 61) - 1


def with_state(groups: tuple[CacheGroup, ...] = GROUPS) -> Architecture:
    return tiny(cache_groups=groups)


class ToyState:
    """Implements backends/base.py `Backend`. Memory begins dirty."""

    def __init__(self, architecture: Architecture, n_blocks: int, late_every: int = 0) -> None:
        """`late_every`: of the rows that are sampled, each so-and-so-many-th is told to come again."""
        self.late_every, self.n_sampled, self.n_late = late_every, 0, 0
        self.architecture = architecture
        self.info = BackendInfo("toy", "", "f32")
        self._queue = HostQueue(self._run)
        self.kinds = [group.kind for group in architecture.cache_groups]
        self.pools = [np.full((n_blocks, BLOCK_TOKENS), 77, dtype=np.int64) for _ in self.kinds]

    def block_bytes(self, dtype: str) -> tuple[int, ...]:
        return (8 * BLOCK_TOKENS,) * len(self.kinds)

    def allocate(self, kv: KvSpec) -> None: ...

    def launch(self, step: Step) -> Pending:
        return self._queue.launch(step)

    def run(self, step: Step) -> StepResult:
        return self.launch(step).collect()

    def on_host_reason(self, row: StepRow) -> str:
        return ""

    def _run(self, step: PlainStep) -> list[RowResult]:
        seen = np.zeros(len(step.ids), dtype=np.int64)
        for index in range(len(step.rows)):
            begin, end = int(step.row_starts[index]), int(step.row_starts[index + 1])
            seen[begin:end] = self._row(step, index, begin, end)
        wanted = wanted_positions(step)
        vocab = self.architecture.vocab_size
        logits = [np.random.default_rng(int(seen[i])).normal(0, 3, vocab).astype(np.float32) for i in wanted.flat]
        results = row_results(step, wanted, np.array(logits, dtype=np.float32).reshape(-1, vocab))
        return [self._perhaps_late(result) for result in results]

    def _perhaps_late(self, result: RowResult) -> RowResult:
        self.n_sampled += bool(len(result.tokens))
        if not (self.late_every and len(result.tokens) and self.n_sampled % self.late_every == 0):
            return result
        self.n_late += 1
        return RowResult(tokens=np.empty(0, dtype=np.int32), mask_late=True)

    def _row(self, step: PlainStep, index: int, begin: int, end: int) -> list[int]:
        """The state after each id of the row's chunk."""
        tables = [step.block_tables[group][index] for group in range(len(self.kinds))]
        at = self.kinds.index("state")
        states = self.pools[at][tables[at][0]]
        first = int(step.positions[begin])
        state = 1 if first == 0 else int(states[0])
        out = []
        for group, kind in enumerate(self.kinds):
            if kind == "full" and first:
                block = tables[group][(first - 1) // BLOCK_TOKENS]
                assert self.pools[group][block, (first - 1) % BLOCK_TOKENS] == state, "the cache isn't this prefix's"
        for offset in range(begin, end):
            state = (state * 1_000_003 + int(step.ids[offset]) + 11) % MODULUS
            out.append(state)
            position = int(step.positions[offset])
            for group, kind in enumerate(self.kinds):
                if kind == "full":
                    self.pools[group][tables[group][position // BLOCK_TOKENS], position % BLOCK_TOKENS] = state
        states[:] = state
        return out

    def copy_blocks(self, group: int, pairs: Int32s) -> None:
        self._queue.move(lambda: self._copy(group, pairs))

    def _copy(self, group: int, pairs: Int32s) -> None:
        for source, target in pairs.tolist():
            self.pools[group][target] = self.pools[group][source]

    def read_blocks(self, group: int, block_ids: Int32s) -> bytes:
        self._queue.finish()
        return self.pools[group][block_ids].tobytes()

    def write_blocks(self, group: int, block_ids: Int32s, data: bytes) -> None:
        self._queue.finish()
        self.pools[group][block_ids] = np.frombuffer(data, dtype=np.int64).reshape(len(block_ids), -1)

    def load_adapter(self, path: str) -> int:
        return 1  # always the same slot

    def unload_adapter(self, slot: int) -> None: ...

    def close(self) -> None: ...


def toy(
    n_blocks: int = 64, groups: tuple[CacheGroup, ...] = GROUPS, late_every: int = 0, **fields: Any
) -> dict[str, Any]:
    """Fields of tiny_engine.Tiny."""
    architecture = with_state(groups)
    return {
        "architecture": architecture,
        "n_blocks": n_blocks,
        "wrap": lambda _: ToyState(architecture, n_blocks, late_every),
        **fields,
    }
