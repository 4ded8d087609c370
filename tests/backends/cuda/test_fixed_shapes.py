"""What a captured graph needs, watched on a CPU: no value is read, and each step of a bucket does the same to the same
memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from imp_server.backends.base import LAST_SAMPLED, WANT_SAMPLE, KvSpec, StepRow
from imp_server.backends.cuda.backend import CudaBackend
from imp_server.backends.cuda.device import CpuDevice
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.backends.array_source import ArraySource
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource
from tests.backends.cuda.test_forward import KNOWN

READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "lift_fresh", "equal")
"""Names of operations that read values, or bring some from the host."""
VALUE_INDEXED = ("aten.index.Tensor", "aten.index_put_.default", "aten.index_put.default")


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down each operation with shapes, types and the places of what was there before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[Any] = []
        self._made: set[int] = set()
        self._kept: list[Any] = []
        """So that no place is given out twice."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: that would import the compiler, which takes seconds and is never met here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(f"aten.{read}" in name for read in READS):
            raise AssertionError(f"{name} reads values")
        tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
        if name in VALUE_INDEXED and any(t.dtype == torch.bool for t in tensors[1:]):
            raise AssertionError(f"{name} with a mask has a shape that values decide")
        self.lines.append((name, *(self._line(t) for t in tensors)))
        before = {t.untyped_storage().data_ptr() for t in tensors}
        out = func(*args, **(kwargs or {}))
        made = {t.untyped_storage().data_ptr() for t in tree_leaves(out) if isinstance(t, torch.Tensor)}
        self._made |= made - before
        self._kept.append(out)
        return out

    def _line(self, tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage().data_ptr()
        place = None if storage in self._made else tensor.data_ptr()
        return tuple(tensor.shape), tensor.dtype, place


class WatchedDevice(CpuDevice):
    """Compares all work under one key."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Hashable, list[Any]] = {}
        self.n_compared = 0

    def run(self, key: Hashable, work: Callable[[], None], *, is_decode: bool) -> None:
        if key not in self.seen:
            work()  # a table may be made at first use
            self.seen[key] = []
            return
        with Watch() as watch:
            work()
        if self.seen[key]:
            assert watch.lines == self.seen[key], key
            self.n_compared += 1
        self.seen[key] = watch.lines

    def forget_graphs(self) -> None:
        self.seen.clear()


LAWS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.2, logit_bias=((4, 2.0),)),
)


def rows_of(backend: CudaBackend, n: int, law: SamplingParams) -> Iterator[Any]:
    """`n` rows, decoded side by side for some steps with masks, then run ahead, then with drafts."""
    vocab, n_groups = backend.architecture.vocab_size, len(backend.architecture.cache_groups)
    rng = np.random.default_rng(n)
    states = [SamplerState(law, r, rng.integers(0, vocab, 9).astype(np.int32), 99) for r in range(n)]
    masks = rng.integers(0, 2**32, (n, -(-vocab // 32)), dtype=np.uint32) | np.uint32(1)
    for number in range(9):
        builder = StepBuilder(n_groups)
        for r, state in enumerate(states):
            is_ahead = number > 3
            first = 0 if number == 0 else 8 + number
            drafts = [1, 2] if number > 6 else []
            ids = state.history[:9] if number == 0 else [LAST_SAMPLED] if is_ahead else [state.history[-1]]
            row = StepRow(WANT_SAMPLE, len(drafts), state, -1 if drafts else r, -1, slot=r, is_ahead=is_ahead)
            row.n_history = 9 + number
            if number == 0:
                for group in range(n_groups):
                    builder.change_table(
                        group, r, np.arange(4, dtype=np.int32), np.arange(4 * r, 4 * r + 4, dtype=np.int32)
                    )
            builder.add(row, np.asarray([*ids, *drafts], dtype=np.int32), first)
        yield builder.finish(masks)
        if number <= 3:
            for state in states:
                state.append([3])


SOURCES: dict[str, Any] = {
    "plain": lambda: ArraySource(KNOWN["plain"]),
    "mixed": lambda: ArraySource(KNOWN["mixed"]),
    "shared": lambda: ArraySource(KNOWN["shared"]),
    "streams": lambda: ArraySource(KNOWN["streams"]),
    **{
        variant.name: (lambda variant=variant: SyntheticSource(variant.architecture, variant.types))
        for variant in VARIANTS
        if variant.name in ("qwen3", "sinks", "scaled", "experts in groups", "latents")
    },
}


@pytest.mark.parametrize(
    ("name", "kv"),
    [
        ("plain", "int8"),
        *(pytest.param(name, "bf16", marks=pytest.mark.slow) for name in SOURCES),
        *(pytest.param("mixed", kv, marks=pytest.mark.slow) for kv in ("fp8", "int4", "nvfp4")),
    ],
)
def test_each_step_of_a_bucket_does_the_same_to_the_same_memory(name: str, kv: str) -> None:
    device = WatchedDevice()
    backend = CudaBackend(SOURCES[name](), device)
    backend.allocate(KvSpec((16,) * len(backend.architecture.cache_groups), kv))
    for law in LAWS if kv == "bf16" else LAWS[1:]:
        for step in rows_of(backend, 3, law):
            backend.run(step)
    assert device.n_compared > 6


def test_the_watch_finds_what_it_is_for() -> None:
    x = torch.arange(6.0)
    for read in (lambda: x.sum().item(), lambda: x[x > 2], lambda: x.nonzero(), lambda: torch.tensor([1, 2])):
        with pytest.raises(AssertionError, match=r"read|values"), Watch():
            read()
    with Watch() as one:
        x.mul_(2)
    with Watch() as other:
        torch.arange(6.0).mul_(2)
    assert one.lines != other.lines
