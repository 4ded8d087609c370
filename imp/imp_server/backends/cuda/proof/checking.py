"""One case: the kernel against its plain twin, three times over the same memory, in a graph where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from imp_server.backends.cuda.card import Card
from imp_server.backends.cuda.kernels import KernelOperations, Scratch
from imp_server.backends.cuda.launching import Argument, KernelSource
from imp_server.backends.cuda.operations import LayerKv, Rows, SampleOutputs, SlotState
from imp_server.backends.cuda.plain.operations import PlainOperations
from imp_server.backends.cuda.proof.arguments import OUTPUTS, copied, made, tensors_of
from imp_server.backends.cuda.proof.cases import OperationCall

Tensor = torch.Tensor
PLAIN = PlainOperations()
SUMS = 4e-5
"""Of the largest output, where float32 sums have another order: that of the list (1e-5), and the plain twin's own."""
ROUNDED = 2.0**-7
"""Where activations are rounded to bfloat16 first: 2^-8 for each of two factors."""
_MANY_TOKENS = 8
_KV_STEPS = {"f32": SUMS, "bf16": 2.0**-8, "fp8": 2.0**-4, "int8": 2.0**-7, "int4": 2.0**-2, "nvfp4": 2.0**-2}
_MOST_OTHER_BYTES = 0.02
"""Share of a cache's bytes: a sum in another order may round a number the other way."""


class _NotedSources:
    """Implements `Launcher`: launches nothing."""

    def __init__(self) -> None:
        self.sources: list[KernelSource] = []

    def prepare(self, sources: Sequence[KernelSource]) -> None:
        return

    def load(self, source: KernelSource) -> None:
        return

    def launch(
        self,
        source: KernelSource,
        entry: str,
        grid: tuple[int, int, int],
        n_threads: int,
        args: Sequence[Argument],
        shared_bytes: int = 0,
    ) -> None:
        if source not in self.sources:
            self.sources.append(source)


class CaseRun:
    """One case on a card; `sources` empty = no kernel fits it."""

    def __init__(self, case: OperationCall, card: Card, seed: int = 1) -> None:
        self._case, self._card = case, card
        self._given = made(case, card.device.torch_device, seed)
        noted = _NotedSources()
        scratch = Scratch(card.device.torch_device)
        self._call(KernelOperations(PLAIN, noted, scratch, n_processors=card.n_processors), copied(self._given))
        self.sources = tuple(noted.sources)

    def compile(self) -> None:
        """Raises DeviceError."""
        for source in self.sources:
            assert self._card.launcher is not None
            self._card.launcher.load(source)

    def fault(self) -> str:
        """What is wrong with what the kernel makes; "" = nothing. Raises whatever a launch raises."""
        card, launcher = self._card, self._card.launcher
        assert launcher is not None
        twin, ours = copied(self._given), copied(self._given)
        self._call(PLAIN, twin)
        scratch = Scratch(card.device.torch_device)
        kernels = KernelOperations(PLAIN, launcher, scratch, n_processors=card.n_processors)
        before = [tensor.clone() for tensor in tensors_of(ours)]
        results = []
        for _ in range(3):
            for tensor, first in zip(tensors_of(ours), before, strict=True):
                tensor.copy_(first)
            card.device.run("case", lambda: self._call(kernels, ours), is_decode=True)
            results.append([tensor.clone() for tensor in tensors_of(ours)])
        card.device.forget_graphs()
        if not all(_same_bits(results[0], other) for other in results[1:]):
            return "the same launch made other bits"
        return differences(self._case.operation, self._given, twin, ours)

    def _call(self, operations: Any, arguments: dict[str, Any]) -> None:
        getattr(operations, self._case.operation)(*arguments.values())


def _same_bits(first: list[Tensor], other: list[Tensor]) -> bool:
    pairs = zip(first, other, strict=True)
    return all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in pairs)


def differences(operation: str, given: dict[str, Any], twin: dict[str, Any], ours: dict[str, Any]) -> str:
    """What differs more than it may, or "". Padding isn't looked at."""
    rows = given.get("rows")
    used = _used(rows) if isinstance(rows, Rows) else None
    if operation in ("sample", "take_best"):
        return _sampled_differently(twin, ours)
    if operation == "head_argmax":
        return _not_the_best(given, ours["out"])
    for name in twin:
        if name == "rows":
            continue
        one, other, first = twin[name], ours[name], given[name]
        if isinstance(one, LayerKv):
            found = _other_cache(one, other, first)
        elif isinstance(one, Tensor):
            is_made = name in OUTPUTS.get(operation, ("out",)) or operation in ("add", "add_norm", "norm", "activate")
            found = _other_numbers(one, other, used, _bound(operation, one) if is_made else 0.0)
        else:
            continue
        if found:
            return f"{name}: {found}"
    return ""


def _bound(operation: str, out: Tensor) -> float:
    may_round = operation in ("project", "gated_project", "head_logits") and len(out) > _MANY_TOKENS
    return ROUNDED if may_round or operation == "prefill_attention" else SUMS


def _used(rows: Rows) -> Tensor:
    """Of the tokens of a rectangle, those that are there: bool [T]."""
    within = torch.arange(rows.width, device=rows.counts.device)
    return (within < rows.counts[:, None]).flatten()


def _other_numbers(twin: Tensor, ours: Tensor, used: Tensor | None, bound: float) -> str:
    if used is not None and len(used) == len(twin):
        twin, ours = twin[used], ours[used]
    if not twin.is_floating_point() or bound == 0.0:
        return "" if torch.equal(twin, ours) else "other numbers"
    if not bool(torch.isfinite(ours).all()):
        return "numbers that are none"
    if not twin.numel():
        return ""
    worst = float((ours - twin).abs().max() / twin.abs().max().clamp_min(1e-20))
    return "" if worst <= bound else f"off by {worst:.2g} of the largest number"


def _other_cache(twin: LayerKv, ours: LayerKv, given: LayerKv) -> str:
    n = len(given.pool) - 1
    if not torch.equal(ours.pool[-1], given.pool[-1]) and not torch.equal(ours.pool[-1], twin.pool[-1]):
        return "the scratch block holds something else"
    share = float((ours.pool[:-1] != twin.pool[:-1]).sum()) / max(1, ours.pool[:-1].numel())
    if share > _MOST_OTHER_BYTES:
        return f"{share:.1%} of its bytes are others"
    blocks = torch.arange(n, dtype=torch.int32, device=given.pool.device)[None]
    for part, place in enumerate(given.parts):
        found = [torch.empty((1, place.heads, 16 * n, place.size), device=given.pool.device) for _ in range(2)]
        PLAIN.gather_kv(twin, part, blocks, found[0])
        PLAIN.gather_kv(ours, part, blocks, found[1])
        if wrong := _other_numbers(found[0], found[1], None, _KV_STEPS[given.dtype]):
            return wrong
    return ""


def _not_the_best(given: dict[str, Any], ours: Tensor) -> str:
    """The best of logits, or one that is as good but for the order of sums."""
    logits = torch.empty((len(ours), given["head"].n_out), device=ours.device)
    PLAIN.head_logits(given["hidden"], given["head"], given["bias"], given["scale"], given["softcap"], logits)
    if bool((ours < 0).any()) or bool((ours >= logits.shape[1]).any()):
        return "ids that there aren't"
    chosen = logits.gather(1, ours[:, None].long())[:, 0]
    slack = SUMS * logits.abs().amax(dim=1)
    return "" if bool((chosen >= logits.amax(dim=1) - slack).all()) else "ids that aren't the best"


def _sampled_differently(twin: dict[str, Any], ours: dict[str, Any]) -> str:
    if _told(twin["out"]) != _told(ours["out"]):
        return "other ids were sampled"
    one, other = twin["slots"], ours["slots"]
    assert isinstance(one, SlotState) and isinstance(other, SlotState)
    is_same = torch.equal(one.last[:-1], other.last[:-1]) and torch.equal(one.histories[:-1], other.histories[:-1])
    return "" if is_same else "other ids were kept of slots"


def _told(out: SampleOutputs) -> list[tuple[list[int], int, int]]:
    rows = zip(out.tokens.tolist(), out.n_tokens.tolist(), out.n_accepted.tolist(), out.flags.tolist(), strict=True)
    return [(tokens[:n], accepted, flags) for tokens, n, accepted, flags in rows]
