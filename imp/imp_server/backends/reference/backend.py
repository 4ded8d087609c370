"""The reference backend: weights dequantised to float32, one thread's plain forward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from imp_server.backends.base import (
    WANT_ALL_HIDDEN,
    WANT_HIDDEN,
    WANT_POOLED,
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
from imp_server.backends.kv_layout import block_bytes
from imp_server.backends.reference.adapters import AdapterTensors
from imp_server.backends.reference.forward import Forward
from imp_server.backends.reference.pools import DTYPE, Pools
from imp_server.core import ConfigError
from imp_server.models.adapters import Adapter, open_adapter
from imp_server.models.architecture import Architecture
from imp_server.models.source import ModelSource


class ReferenceBackend:
    """Owner of the float32 weights and pools. Row results are bitwise independent of batch and chunking."""

    def __init__(
        self, source: ModelSource, *, threads: int = 1, on_progress: Callable[[float], None] | None = None
    ) -> None:
        """More threads don't change results, since every product keeps its shape; more than a few don't pay."""
        torch.set_num_threads(max(1, threads))
        self.architecture: Architecture = source.architecture
        names = sorted(source.names())
        tensors = {}
        for done, name in enumerate(names):
            tensors[name] = torch.from_numpy(np.array(source.array(name), dtype=np.float32))
            if on_progress:
                on_progress((done + 1) / len(names))
        self._source, self._adapters = source, AdapterTensors()
        self._forward = Forward(self.architecture, tensors, self._adapters)
        self._pools: Pools | None = None
        self._queue = HostQueue(self._run)
        self.info = BackendInfo(
            name="reference",
            detail=f"torch {torch.__version__}, float32, {torch.get_num_threads()} thread(s)",
            default_kv_dtype=DTYPE,
            weight_bytes=sum(t.numel() * t.element_size() for t in tensors.values()),
            arithmetic=f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
            waits_for_masks=True,
        )

    def block_bytes(self, dtype: str) -> tuple[int, ...]:
        if dtype != DTYPE:
            raise ConfigError(f"the reference backend caches f32 only, not {dtype}; set kv_cache.dtype=auto")
        return block_bytes(self.architecture, dtype)

    def allocate(self, kv: KvSpec) -> None:
        self._queue.forget()
        self._pools = Pools(self.architecture, kv)

    def launch(self, step: Step) -> Pending:
        return self._queue.launch(step)

    def run(self, step: Step) -> StepResult:
        return self.launch(step).collect()

    def on_host_reason(self, row: StepRow) -> str:
        """By the law itself every row is, in order: only mu, which the engine keeps, isn't known yet."""
        return "mirostat" if row.sampler is not None and row.sampler.params.mirostat == 2 else ""

    @torch.inference_mode()
    def _run(self, step: PlainStep) -> list[RowResult]:
        hidden = self._forward.hidden(step, None if self.architecture.is_encoder else self._required_pools())
        wanted = wanted_positions(step)
        logits = np.empty((0, self.architecture.vocab_size), dtype=np.float32)
        if len(wanted.flat):
            logits = self._forward.logits(hidden[torch.from_numpy(wanted.flat)]).numpy()
        results = row_results(step, wanted, logits)
        for index, result in enumerate(results):
            self._add_vectors(step, index, hidden, result)
        return results

    def copy_blocks(self, group: int, pairs: Int32s) -> None:
        self._queue.move(lambda: self._required_pools().copy(group, pairs))

    def read_blocks(self, group: int, block_ids: Int32s) -> bytes:
        self._queue.finish()
        return self._required_pools().read_bytes(group, block_ids)

    def write_blocks(self, group: int, block_ids: Int32s, data: bytes) -> None:
        self._queue.move(lambda: self._required_pools().write_bytes(group, block_ids, data))

    def load_adapter(self, path: str) -> int:
        return self.add_adapter(open_adapter(path, self._source))

    def add_adapter(self, adapter: Adapter) -> int:
        """One that is matched with the model; its slot."""
        return self._adapters.add(adapter)

    def unload_adapter(self, slot: int) -> None:
        self._queue.finish()
        self._adapters.remove(slot)

    def close(self) -> None:
        self._pools = None

    def _required_pools(self) -> Pools:
        if self._pools is None:
            raise RuntimeError("allocate() comes before the first step")
        return self._pools

    def _add_vectors(self, step: PlainStep, index: int, hidden: torch.Tensor, result: RowResult) -> None:
        wants = step.rows[index].wants
        begin, end = int(step.row_starts[index]), int(step.row_starts[index + 1])
        if wants & WANT_HIDDEN:
            result.hidden = hidden[end - 1 - step.rows[index].n_drafts + result.n_accepted].numpy().copy()
        if wants & WANT_ALL_HIDDEN:
            result.hidden = hidden[begin:end].numpy().copy()
        if wants & WANT_POOLED:
            result.pooled = self._pooled(hidden[begin:end]).numpy().copy()

    def _pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        kind = self.architecture.pooling if self.architecture.is_encoder else "last"
        if kind == "mean":
            # Sums in position order: a library's reduction may group them by length.
            total = torch.zeros_like(hidden[0])
            for row in hidden:
                total = total + row
            return total / len(hidden)
        return hidden[0] if kind == "cls" else hidden[-1]
