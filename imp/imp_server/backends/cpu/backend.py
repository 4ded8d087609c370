"""`CpuBackend`: owner of the packed weights, the KV pools and the native model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from imp_server.backends.base import BLOCK_TOKENS, BackendInfo, Int32s, KvSpec, Step, StepResult, StepRow
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.adapters import PackedAdapter, PackedAdapters
from imp_server.backends.cpu.layouts import LAYOUT_VERSION
from imp_server.backends.cpu.lowering import (
    LoweredModel,
    head_name,
    head_to_split,
    matrix_names,
    refuse_what_we_lack,
)
from imp_server.backends.cpu.pack_cache import load_packed
from imp_server.backends.cpu.plan_tensors import adapter_targets
from imp_server.backends.cpu.probes import ComputeBounds, Probes
from imp_server.backends.cpu.step import PendingStep, StepRunner
from imp_server.backends.cpu.threads import affinity, default_threads
from imp_server.backends.kv_layout import block_bytes
from imp_server.backends.sampled_rows import reason_of
from imp_server.core import ConfigError, HostOutOfMemory
from imp_server.models.adapters import Adapter, open_adapter
from imp_server.models.feed_forwards import DenseAndExperts, Experts
from imp_server.models.source import ModelSource
from imp_server.native import isa_in_use, library_digest

KV_DTYPES = ("bf16", "int8")


class CpuBackend:
    """Implements backends/base.py `Backend`. Raises UnsupportedModel for a model the native forward can't run."""

    def __init__(
        self,
        source: ModelSource,
        *,
        n_threads: int = 0,
        isa: str | None = None,
        quantize: str = "none",
        pack_folder: Path | None = None,
        spin_us: int = 75,
        huge_pages: bool = True,
        with_head_plane: bool = True,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """`n_threads`: the most a step may get, 0 = what affinity and quota leave us; `pack_folder` None = pack at
        each start.
        """
        self.architecture = source.architecture
        refuse_what_we_lack(self.architecture)
        self._library, self._isa = abi.library(isa), isa
        self._source = source
        self._n_threads = n_threads or default_threads()
        self._spin_us = spin_us
        names = matrix_names(self.architecture)
        self.weights = load_packed(
            source,
            names,
            quantize,
            pack_folder,
            on_progress,
            in_huge_pages=huge_pages,
            split=head_to_split(source) if with_head_plane else "",
        )
        self._pools: list[npt.NDArray[np.uint8]] = []
        self._runner: StepRunner | None = None
        self._adapters = PackedAdapters()
        self.info = BackendInfo(
            name="cpu",
            detail=f"{isa_in_use('engine', isa)}, up to {self._n_threads} threads",
            default_kv_dtype="bf16",
            weight_bytes=self.weights.nbytes,
            step_bytes=self.step_bytes,
            arithmetic=f"{library_digest('engine', isa)} layout {LAYOUT_VERSION} quantize {quantize}",
            waits_for_masks=True,
        )

    def block_bytes(self, dtype: str) -> tuple[int, ...]:
        return block_bytes(self.architecture, _known(dtype))

    def allocate(self, kv: KvSpec) -> None:
        sizes = self.block_bytes(kv.dtype)
        lowered = LoweredModel(self._source, self.weights, _known(kv.dtype))
        try:
            self._pools = [np.zeros((n, size), np.uint8) for n, size in zip(kv.n_blocks, sizes, strict=True)]
        except MemoryError:
            need = sum(n * size for n, size in zip(kv.n_blocks, sizes, strict=True)) >> 20
            raise HostOutOfMemory(f"{need} MiB for the KV cache can't be had; lower kv_cache.size_mib") from None
        max_positions = max(kv.n_blocks) * BLOCK_TOKENS
        self._runner = StepRunner(
            self._library,
            lowered,
            self._pools,
            self._adapters,
            self._n_threads,
            max_positions,
            self._spin_us,
            n_beside_masks=min(self._n_threads, max(1, len(affinity()) - 1)),
        )

    def launch(self, step: Step) -> PendingStep:
        return self._ready().launch(step)

    def run(self, step: Step) -> StepResult:
        return self.launch(step).collect()

    def on_host_reason(self, row: StepRow) -> str:
        return reason_of(row) if row.sampler is not None else ""

    def copy_blocks(self, group: int, pairs: Int32s) -> None:
        self._ready().copy_blocks(group, pairs)

    def read_blocks(self, group: int, block_ids: Int32s) -> bytes:
        self._ready().finish_all()
        return self._pools[group][block_ids].tobytes()

    def write_blocks(self, group: int, block_ids: Int32s, data: bytes) -> None:
        self._ready().finish_all()
        pool = self._pools[group]
        pool[block_ids] = np.frombuffer(data, dtype=np.uint8).reshape(len(block_ids), -1)

    def load_adapter(self, path: str) -> int:
        return self.add_adapter(open_adapter(path, self._source))

    def add_adapter(self, adapter: Adapter) -> int:
        """One that is matched with the model; its slot."""
        packed = PackedAdapter(adapter, adapter_targets(self.architecture))
        self.info = replace(self.info, weight_bytes=self.info.weight_bytes + packed.nbytes)
        return self._adapters.add(packed)

    def unload_adapter(self, slot: int) -> None:
        if self._runner is not None:
            self._runner.finish_all()
        n_bytes = self._adapters.remove(slot)
        self.info = replace(self.info, weight_bytes=self.info.weight_bytes - n_bytes)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    @property
    def native_s(self) -> float:
        """Seconds of the last step's native call: what the host adds to it is the rest of `run`."""
        return self._ready().native_s

    @property
    def panels_evaluated(self) -> int:
        """StepRunner.panels_evaluated."""
        return self._ready().panels_evaluated

    @property
    def masked_panels(self) -> int:
        """StepRunner.masked_panels."""
        return self._ready().masked_panels

    def thread_costs(self) -> dict[str, dict[str, float]]:
        """ThreadChoice.table of what ran so far."""
        return self._ready().threads.table()

    def read_bandwidth(self) -> float:
        """Bytes per second of one thread reading all packed weights once, measured now."""
        return self._ready().read_bandwidth(self.weights.buffer)

    def compute_bounds(self) -> ComputeBounds:
        """What a prefill could reach on this machine now, with all threads."""
        return Probes(self._n_threads, self._isa).bounds(self.weights.shapes, self.architecture)

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step of one row reads: of experts the chosen ones, of an embedding that isn't the
        head none to speak of.
        """
        return sum(self._bytes_read(name) for name in self.weights.shapes)

    @property
    def greedy_step_bytes(self) -> int:
        """The same of a greedy row, but for the few panels of a split head that its upper bits leave open."""
        head = self.weights.shapes[head_name(self.architecture)]
        return self.step_bytes - head.nbytes + head.upper_bytes

    def _bytes_read(self, name: str) -> int:
        if name == "layer_embedding" or (name == "embedding" and not self.architecture.tied_head):
            return 0
        n_bytes = self.weights.shapes[name].nbytes
        kind, index, part = (*name.split("."), "", "")[:3]
        feed_forward = self.architecture.layers[int(index)].feed_forward if kind == "layers" else None
        experts = feed_forward.experts if isinstance(feed_forward, DenseAndExperts) else feed_forward
        if isinstance(experts, Experts) and part.startswith("experts_"):
            return n_bytes * experts.top_k // experts.count
        return n_bytes

    def _ready(self) -> StepRunner:
        if self._runner is None:
            raise RuntimeError("allocate() comes before the first step")
        return self._runner


def _known(dtype: str) -> str:
    if dtype == "auto":
        return "bf16"
    if dtype not in KV_DTYPES:
        raise ConfigError(f"kv_cache.dtype={dtype}: the cpu backend has {' and '.join(KV_DTYPES)}")
    return dtype
