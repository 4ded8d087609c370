"""`CudaBackend`: owner of the weights on the device, the KV pools and the steps under way."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from imp_server.backends.base import (
    BLOCK_TOKENS,
    BackendInfo,
    DeviceLost,
    Int32s,
    KvSpec,
    Step,
    StepResult,
    StepRow,
)
from imp_server.backends.cuda.buffers import power_of_two
from imp_server.backends.cuda.device import Device
from imp_server.backends.cuda.forward import DeviceForward, layer_seen
from imp_server.backends.cuda.hang_guard import HangGuard
from imp_server.backends.cuda.kernel_choice import KernelChoice, is_device_fault
from imp_server.backends.cuda.lowering import buffer_needs, matrix_names, refuse_what_we_lack
from imp_server.backends.cuda.operations import KvPart, LayerKv, Operations
from imp_server.backends.cuda.plain.operations import PlainOperations
from imp_server.backends.cuda.planner import MemoryPlan
from imp_server.backends.cuda.proof.cases import OperationCall
from imp_server.backends.cuda.proof.noting import noted_cases
from imp_server.backends.cuda.rectangles import MAX_TOKENS
from imp_server.backends.cuda.step_runner import DeviceSteps, LaunchedStep
from imp_server.backends.cuda.weights import DeviceWeights, Rotations
from imp_server.backends.cuda.workspace import Workspace
from imp_server.backends.kv_layout import KvLayout, block_bytes, kv_layouts
from imp_server.backends.sampled_rows import reason_of
from imp_server.core import EXIT_DEVICE_LOST, ConfigError, EngineFaulted, InternalError, UnsupportedModel
from imp_server.models.mixers import LatentAttention
from imp_server.models.source import ModelSource

log = logging.getLogger(__name__)

KV_DTYPES = ("bf16", "f32", "fp8", "int8", "int4", "nvfp4")


class CudaBackend:
    """Implements backends/base.py `Backend`. Raises UnsupportedModel for a model that it can't run."""

    # What runs: `ops`, or what `kernels` chooses once the type of the cache is known, or the plain layer.
    def __init__(
        self,
        source: ModelSource,
        device: Device,
        *,
        ops: Operations | None = None,
        kernels: KernelChoice | None = None,
        deterministic: bool = False,
        weights: DeviceWeights | None = None,
        memory: MemoryPlan | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.architecture = source.architecture
        refuse_what_we_lack(self.architecture)
        self._device = device
        self._ops: Operations = PlainOperations() if ops is None else ops
        self._kernels, self._deterministic = kernels, deterministic
        self.weights = DeviceWeights(source, device.torch_device) if weights is None else weights
        self.weights.load(matrix_names(self.architecture), on_progress)
        self._guard = HangGuard(self._give_up) if device.has_own_memory else None
        self._pools: list[torch.Tensor] = []
        self._runner: DeviceSteps | None = None
        self._arithmetic = f"cuda {device.detail}{' deterministic' if deterministic else ''}"
        self.info = BackendInfo(
            name="cuda",
            detail=f"{device.detail}; operations: {self._ops.name}",
            default_kv_dtype="bf16",
            weight_bytes=self.weights.nbytes,
            arithmetic=f"{self._arithmetic} {self._ops.name}",
            has_device_memory=device.has_own_memory,
            waits_for_masks=True,
            overlaps=device.has_own_memory,
            kv_memory_bytes=memory.left_for_kv if memory is not None and device.has_own_memory else None,
        )

    def block_bytes(self, dtype: str) -> tuple[int, ...]:
        return block_bytes(self.architecture, _known(dtype))

    @torch.inference_mode()
    def allocate(self, kv: KvSpec) -> None:
        a, dtype = self.architecture, _known(kv.dtype)
        layouts = kv_layouts(a, dtype)
        on = self._device.torch_device
        self._runner = None
        self._pools = []
        self._device.forget_graphs()
        if self._kernels is not None:
            self._choose(self._kernels, kv, dtype)
        # The block behind the last one takes what padding writes.
        self._pools = [
            torch.zeros((n + 1, layout.block_bytes), dtype=torch.uint8, device=on)
            for n, layout in zip(kv.n_blocks, layouts, strict=True)
        ]
        forward = self._forward(kv, dtype, self._pools, self._ops)
        self._runner = DeviceSteps(
            forward, self._ops, self._device, len(a.cache_groups), MAX_TOKENS, self._deterministic
        )

    def _choose(self, kernels: KernelChoice, kv: KvSpec, dtype: str) -> None:
        """Before there are pools: a process of its own may try kernels, and needs memory for that."""
        cases: list[OperationCall] = []
        sizes = block_bytes(self.architecture, dtype)
        if kernels.wants_cases:
            pools = [torch.zeros((1, size), dtype=torch.uint8, device=self._device.torch_device) for size in sizes]
            rectangles = kernels.rectangles(power_of_two(-(-self._n_positions(kv) // BLOCK_TOKENS)))
            cases = noted_cases(partial(self._forward, kv, dtype, pools), rectangles, sizes, self._device)
        self._ops = kernels.operations(cases)
        self.info = replace(
            self.info,
            detail=f"{self._device.detail}; kernels: {kernels.text()}",
            arithmetic=f"{self._arithmetic} {' '.join(('plain', *kernels.chosen))}",
        )

    def _forward(self, kv: KvSpec, dtype: str, pools: Sequence[torch.Tensor], ops: Operations) -> DeviceForward:
        a, on = self.architecture, self._device.torch_device
        layouts = kv_layouts(a, dtype)
        seen = [self._layer_kv(layer_seen(a, index), pools, layouts, dtype) for index in range(a.n_layers)]
        rotations = Rotations(self._n_positions(kv), on)
        return DeviceForward(self.weights, seen, rotations, ops, Workspace(buffer_needs(a), MAX_TOKENS, on))

    def launch(self, step: Step) -> PendingDeviceStep:
        with self._in_charge():
            return PendingDeviceStep(self, self._ready().launch(step))

    def collect(self, flight: LaunchedStep) -> StepResult:
        with self._in_charge():
            return self._ready().collect(flight)

    @contextmanager
    def _in_charge(self) -> Iterator[None]:
        """Of the device, which may fail, or not answer."""
        with torch.inference_mode(), self._noticing_faults(), self._guard.waiting() if self._guard else nullcontext():
            yield

    def _give_up(self) -> None:
        """The card doesn't answer; its kernels are to blame until they have proved the contrary."""
        used = self._runner.kernels_under_way() if self._runner is not None else frozenset()
        if self._kernels is not None:
            self._kernels.note_fault(used)
        log.critical("the card doesn't answer in a step with kernels for %s; the engine ends", sorted(used))
        os._exit(EXIT_DEVICE_LOST)

    def run(self, step: Step) -> StepResult:
        return self.launch(step).collect()

    def on_host_reason(self, row: StepRow) -> str:
        return reason_of(row) if row.sampler is not None else ""

    @torch.inference_mode()
    def copy_blocks(self, group: int, pairs: Int32s) -> None:
        n = len(pairs)
        if not n:
            return
        pool = self._pools[group]
        padded = np.full((power_of_two(n), 2), len(pool) - 1, dtype=np.int32)
        padded[:n] = pairs
        sent = torch.empty(padded.shape, dtype=torch.int32, device=pool.device)
        self._device.upload(sent, padded)
        self._ops.copy_blocks(pool, sent)

    @torch.inference_mode()
    def read_blocks(self, group: int, block_ids: Int32s) -> bytes:
        pool = self._pools[group]
        found = pool[self._indices(block_ids)]
        return bytes(self._device.download(found).wait().tobytes())

    @torch.inference_mode()
    def write_blocks(self, group: int, block_ids: Int32s, data: bytes) -> None:
        pool = self._pools[group]
        values = np.frombuffer(data, dtype=np.uint8).reshape(len(block_ids), -1)
        sent = torch.empty(values.shape, dtype=torch.uint8, device=pool.device)
        self._device.upload(sent, values.copy())
        pool[self._indices(block_ids)] = sent

    def load_adapter(self, path: str) -> int:
        raise UnsupportedModel(
            "the cuda backend can't load LoRA adapters yet; use engine.backend=cpu or leave out --lora"
        )

    def unload_adapter(self, slot: int) -> None:
        raise InternalError("the cuda backend has no adapters")

    def counters(self) -> Mapping[str, float]:
        """Implements backends/base.py `Counting`."""
        kernels = self._kernels
        found = dict(self._device.counters())
        found["cuda_kernels_used"] = float(len(kernels.chosen)) if kernels else 0.0
        for name in kernels.condemned if kernels else ():
            found[f'cuda_kernel_condemned{{operation="{name}"}}'] = 1.0
        return found

    @contextmanager
    def _noticing_faults(self) -> Iterator[None]:
        """Raises DeviceLost for what leaves no use of the device, once it is noted which kernels were under way."""
        try:
            yield
        except Exception as error:
            cause = error.__cause__ if isinstance(error, EngineFaulted) and error.__cause__ else error
            if not is_device_fault(cause):
                raise
            used = self._runner.kernels_under_way() if self._runner is not None else frozenset()
            if self._kernels is not None:
                self._kernels.note_fault(used)
            raise DeviceLost(
                f"the card failed ({cause}) in a step with kernels for {sorted(used) or 'nothing'}"
            ) from error

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()
        self._runner = None
        self._pools = []

    def _indices(self, block_ids: Int32s) -> torch.Tensor:
        sent = torch.empty(len(block_ids), dtype=torch.int64, device=self._device.torch_device)
        self._device.upload(sent, block_ids.astype(np.int64))
        return sent

    def _n_positions(self, kv: KvSpec) -> int:
        """That a row can come to."""
        full = [
            n * BLOCK_TOKENS
            for group, n in zip(self.architecture.cache_groups, kv.n_blocks, strict=True)
            if group.kind == "full"
        ]
        return min(full) if full else self.architecture.context_length

    def _layer_kv(
        self, index: int, pools: Sequence[torch.Tensor], layouts: tuple[KvLayout, ...], dtype: str
    ) -> LayerKv:
        layer = self.architecture.layers[index]
        place = layouts[layer.cache_group][index]
        parts = [
            KvPart(
                part.part.heads,
                part.part.size,
                place.offset + part.values,
                place.offset + part.scales if part.scales >= 0 else -1,
                part.stride,
            )
            for part in place.parts
        ]
        return LayerKv(
            pools[layer.cache_group],
            dtype,  # type: ignore[arg-type]
            layer.cache_group,
            (parts[0], parts[1]),
            latent=isinstance(layer.mixer, LatentAttention),
        )

    def _ready(self) -> DeviceSteps:
        if self._runner is None:
            raise RuntimeError("allocate() comes before the first step")
        return self._runner


class PendingDeviceStep:
    """Implements backends/base.py `Pending`."""

    def __init__(self, backend: CudaBackend, flight: LaunchedStep) -> None:
        self._backend, self._flight = backend, flight

    def collect(self) -> StepResult:
        return self._backend.collect(self._flight)


def _known(dtype: str) -> str:
    if dtype == "auto":
        return "bf16"
    if dtype not in KV_DTYPES:
        raise ConfigError(f"kv_cache.dtype={dtype}: the cuda backend has {_listed()}")
    return dtype


def _listed() -> str:
    return ", ".join(KV_DTYPES[:-1]) + f" and {KV_DTYPES[-1]}"
