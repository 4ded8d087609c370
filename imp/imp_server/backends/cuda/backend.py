"""`CudaBackend`: owner of the weights on the device, the KV pools and the steps under way."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from imp_server.backends.base import (
    BLOCK_TOKENS,
    NO_ADAPTERS,
    BackendInfo,
    Int32s,
    KvSpec,
    Step,
    StepResult,
    StepRow,
)
from imp_server.backends.cuda.buffers import power_of_two
from imp_server.backends.cuda.device import Device
from imp_server.backends.cuda.forward import DeviceForward, layer_seen
from imp_server.backends.cuda.lowering import buffer_needs, matrix_names, refuse_what_we_lack
from imp_server.backends.cuda.operations import KvPart, LayerKv, Operations
from imp_server.backends.cuda.plain.operations import PlainOperations
from imp_server.backends.cuda.planner import MemoryPlan
from imp_server.backends.cuda.rectangles import MAX_TOKENS
from imp_server.backends.cuda.step_runner import DeviceSteps, LaunchedStep
from imp_server.backends.cuda.weights import DeviceWeights, Rotations
from imp_server.backends.cuda.workspace import Workspace
from imp_server.backends.kv_layout import KvLayout, block_bytes, kv_layouts
from imp_server.backends.sampled_rows import reason_of
from imp_server.core import ConfigError, UnsupportedModel
from imp_server.models.mixers import LatentAttention
from imp_server.models.source import ModelSource

log = logging.getLogger(__name__)

KV_DTYPES = ("bf16", "f32", "fp8", "int8")
NOT_YET_DTYPES = ("int4", "nvfp4")


class CudaBackend:
    """Implements backends/base.py `Backend`. Raises UnsupportedModel for a model that it can't run."""

    def __init__(
        self,
        source: ModelSource,
        device: Device,
        *,
        ops: Operations | None = None,
        memory: MemoryPlan | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.architecture = source.architecture
        refuse_what_we_lack(self.architecture)
        self._device = device
        self._ops: Operations = PlainOperations() if ops is None else ops
        self.weights = DeviceWeights(source, device.torch_device)
        self.weights.load(matrix_names(self.architecture), on_progress)
        self._pools: list[torch.Tensor] = []
        self._runner: DeviceSteps | None = None
        self.info = BackendInfo(
            name="cuda",
            detail=f"{device.detail}; operations: {self._ops.name}",
            default_kv_dtype="bf16",
            weight_bytes=self.weights.nbytes,
            arithmetic=f"cuda {device.detail} {self._ops.name}",
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
        # The block behind the last one takes what padding writes.
        self._pools = [
            torch.zeros((n + 1, layout.block_bytes), dtype=torch.uint8, device=on)
            for n, layout in zip(kv.n_blocks, layouts, strict=True)
        ]
        seen = [self._layer_kv(layer_seen(a, index), layouts, dtype) for index in range(a.n_layers)]
        rotations = Rotations(self._n_positions(kv), on)
        work = Workspace(buffer_needs(a), MAX_TOKENS, on)
        forward = DeviceForward(self.weights, seen, rotations, self._ops, work)
        self._runner = DeviceSteps(forward, self._ops, self._device, len(a.cache_groups), MAX_TOKENS)

    def launch(self, step: Step) -> PendingDeviceStep:
        with torch.inference_mode():
            return PendingDeviceStep(self._ready(), self._ready().launch(step))

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
        raise UnsupportedModel(NO_ADAPTERS)

    def unload_adapter(self, slot: int) -> None:
        raise UnsupportedModel(NO_ADAPTERS)

    def close(self) -> None:
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

    def _layer_kv(self, index: int, layouts: tuple[KvLayout, ...], dtype: str) -> LayerKv:
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
            self._pools[layer.cache_group],
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

    def __init__(self, runner: DeviceSteps, flight: LaunchedStep) -> None:
        self._runner, self._flight = runner, flight

    @torch.inference_mode()
    def collect(self) -> StepResult:
        return self._runner.collect(self._flight)


def _known(dtype: str) -> str:
    if dtype == "auto":
        return "bf16"
    if dtype in NOT_YET_DTYPES:
        raise ConfigError(f"kv_cache.dtype={dtype}: the cuda backend has no such cache yet; it has {_listed()}")
    if dtype not in KV_DTYPES:
        raise ConfigError(f"kv_cache.dtype={dtype}: the cuda backend has {_listed()}")
    return dtype


def _listed() -> str:
    return ", ".join(KV_DTYPES[:-1]) + f" and {KV_DTYPES[-1]}"
