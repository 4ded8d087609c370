"""Steps on the device: each rectangle's forward, then one head and one sampling for all rows of the step.

The forwards are queued at once. Sampling follows when the masks that it needs are there: at once if they are, else
before the next step is queued or when this one is collected, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from imp_server.backends.base import (
    WANT_ALL_HIDDEN,
    WANT_HIDDEN,
    WANT_LOGITS,
    WANT_POOLED,
    WANT_PROMPT_LOGITS,
    WANT_SAMPLE,
    Embeddings,
    Int32s,
    RowResult,
    Step,
    StepResult,
)
from imp_server.backends.cuda.buffers import PackedArrays, power_of_two
from imp_server.backends.cuda.device import Device, HostCopy
from imp_server.backends.cuda.forward import DeviceForward
from imp_server.backends.cuda.host_rows import HostPart, finish_on_host, is_sampled_on_host
from imp_server.backends.cuda.operations import Operations, Rows
from imp_server.backends.cuda.rectangles import Rectangle, cut, cut_alike, is_decode
from imp_server.backends.cuda.sampling import (
    PreparedSampling,
    SampledRow,
    SamplerFrame,
    SamplerShape,
    mask_words,
    shape_of,
)
from imp_server.backends.cuda.slots import DeviceSlots
from imp_server.backends.late_masks import await_masks
from imp_server.core import EngineFaulted

Tensor = torch.Tensor

_LOGITS_WANTED = WANT_LOGITS | WANT_PROMPT_LOGITS
_VECTORS_WANTED = WANT_HIDDEN | WANT_POOLED | WANT_ALL_HIDDEN
HEAD_ROWS = 16
"""Rows of logits made at once for the host, and at all where every product has one shape."""


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """The bucket of a rectangle. `n_picks`: hidden states that are sampled from."""

    n_rows: int
    width: int
    columns: int
    n_picks: int


class ForwardFrame:
    """Owner of the device's inputs of one bucket, for all its steps."""

    def __init__(self, shape: ForwardShape, n_groups: int, device: Device) -> None:
        self.shape, self._device = shape, device
        n, tokens = shape.n_rows, shape.n_rows * shape.width
        names = {"ids": (tokens,), "slots": (n,), "starts": (n,), "counts": (n,)}
        self._layout = PackedArrays(names | {"sources": (shape.n_picks,), "targets": (shape.n_picks,)})
        on: dict[str, Any] = {"dtype": torch.int32, "device": device.torch_device}
        self._sent = torch.zeros(self._layout.size, **on)
        self.views = self._layout.tensors(self._sent)
        tables = tuple(torch.zeros((n, shape.columns), **on) for _ in range(n_groups))
        self.rows = Rows(n, shape.width, self.views["slots"], self.views["starts"], self.views["counts"], tables)

    def send(self, **arrays: Int32s) -> None:
        whole = np.zeros(self._layout.size, dtype=np.int32)
        for name, view in self._layout.arrays(whole).items():
            view[:] = arrays[name]
        self._device.upload(self._sent, whole)


@dataclass(slots=True, weakref_slot=True, eq=False)
class LaunchedStep:
    """A step that was launched."""

    step: Step
    prepared: PreparedSampling | None
    host: HostPart
    download: HostCopy | None = None
    waits_ms: list[float] = field(default_factory=list)
    """Of the rows sampled on the device: how long was waited for their masks."""
    is_sampled: bool = False
    error: Exception | None = None
    kernels: set[str] = field(default_factory=set)
    """Operations of it that kernels were launched for."""


class DeviceSteps:
    """Owner of the buffers of steps; runs them in the order of their launch."""

    def __init__(
        self,
        forward: DeviceForward,
        ops: Operations,
        device: Device,
        n_groups: int,
        n_tokens: int,
        deterministic: bool = False,
    ) -> None:
        """`n_tokens`: of the widest rectangle. `deterministic`: products and attention have shapes that depend on an
        id's position alone."""
        a = forward.architecture
        self._forward, self._ops, self._device, self._n_groups = forward, ops, device, n_groups
        self._vocab_size, self._width = a.vocab_size, a.width
        self.slots = DeviceSlots(device, n_groups)
        self._hidden = torch.zeros((n_tokens, a.width), device=device.torch_device)
        self._forwards: dict[ForwardShape, ForwardFrame] = {}
        self._samplers: dict[SamplerShape, SamplerFrame] = {}
        """They share their masks."""
        self._cut, self._head_rows = (cut_alike, HEAD_ROWS) if deterministic else (cut, 0)
        self._n_outputs = 0
        self._make_outputs(HEAD_ROWS)
        self._waiting: LaunchedStep | None = None
        """The one whose sampling has yet to be queued."""
        self._under_way: WeakSet[LaunchedStep] = WeakSet()
        """One that failed is dropped by whoever has it."""
        self._kernels_of: dict[Hashable, frozenset[str]] = {}
        """By key of device work."""

    def launch(self, step: Step) -> LaunchedStep:
        self._sample_waiting()
        rectangles = self._cut(step)
        self.slots.make_room(step, max(rectangle.columns for rectangle in rectangles))
        self.slots.change_tables(step.table_changes)
        sampled = _sampled_rows(step)
        prepared = self._prepared(sampled)
        # Behind `prepared`: both read the samplers, and nobody appends in between.
        self.slots.send_histories([each.row for each in sampled])
        picks = _Picks(step, sampled, 0 if prepared is None else prepared.frame.shape.width)
        flight = LaunchedStep(step, prepared, HostPart(step))
        self._under_way.add(flight)
        head = None if prepared is None else prepared.frame.shape
        # One graph where the step is one rectangle.
        joins = len(rectangles) == 1 and step.embeddings is None
        for rectangle in rectangles:
            self._run(flight, rectangle, picks, head if joins else None)
        if head is not None and not joins:
            self._do(flight, ("head", head.n_outputs, head.is_best), partial(self._head, head), is_decode=True)
        self._waiting = flight
        if _masks_are_there(step, sampled):
            self._sample_waiting()
        return flight

    def collect(self, flight: LaunchedStep) -> StepResult:
        """Raises EngineFaulted for a step whose sampling failed."""
        if not flight.is_sampled:
            self._sample_waiting()
        if flight.error is not None:
            raise EngineFaulted(f"sampling on the device failed: {flight.error}") from flight.error
        results = [RowResult(np.empty(0, dtype=np.int32)) for _ in flight.step.rows]
        if flight.prepared is not None and flight.download is not None:
            own = flight.prepared
            made = own.frame.results(flight.download.wait(), own.rows, own.n_positions)
            for each, result, wait_ms in zip(own.rows, made, flight.waits_ms, strict=True):
                result.mask_wait_ms = wait_ms
                results[each.index] = result
        finish_on_host(flight.host, results)
        self._under_way.discard(flight)
        return StepResult(results)

    def kernels_under_way(self) -> frozenset[str]:
        """Operations that kernels were launched for in steps that nobody has collected."""
        return frozenset(name for flight in self._under_way for name in flight.kernels)

    def _do(self, flight: LaunchedStep, key: Hashable, work: Callable[[], None], *, is_decode: bool) -> None:
        """Device work of a step. What was captured is replayed without us, so its kernels are known by its key."""
        take_used: Callable[[], frozenset[str]] = getattr(self._ops, "take_used", frozenset)
        flight.kernels |= self._kernels_of.get(key, frozenset())
        take_used()
        try:
            self._device.run(key, work, is_decode=is_decode)
        finally:
            if used := take_used():
                self._kernels_of[key] = used
                flight.kernels |= used

    def _sample_waiting(self) -> None:
        """Queue the sampling of the step launched last, unless that was done."""
        flight, self._waiting = self._waiting, None
        if flight is None:
            return
        flight.is_sampled = True
        if flight.prepared is None:
            return
        try:
            self._sample(flight, flight.prepared)
        except Exception as error:
            flight.error = error

    def _sample(self, flight: LaunchedStep, prepared: PreparedSampling) -> None:
        ready = [await_masks(flight.step, each.row) for each in prepared.rows]
        flight.waits_ms = [ms for _, ms in ready]
        prepared.send(flight.step.masks, [n for n, _ in ready])
        frame, shape = prepared.frame, prepared.frame.shape

        def work() -> None:
            if shape.is_best:
                self._ops.take_best(self._best[: shape.n_outputs], frame.inputs, self.slots.state, frame.outputs)
            else:
                logits = self._logits[: shape.n_outputs]
                self._ops.sample(logits, frame.inputs, self.slots.state, frame.outputs)

        self._do(flight, ("sample", shape), work, is_decode=True)
        flight.download = frame.download()

    def _prepared(self, sampled: Sequence[SampledRow]) -> PreparedSampling | None:
        if not sampled:
            return None
        shape = shape_of(sampled, self._vocab_size)
        if shape.n_outputs > self._n_outputs:
            self._make_outputs(shape.n_outputs)
        if shape not in self._samplers:
            self._samplers[shape] = SamplerFrame(shape, self._masks, self._device)
        return self._samplers[shape].prepare(sampled, self.slots.scratch)

    def _run(self, flight: LaunchedStep, rectangle: Rectangle, picks: _Picks, head: SamplerShape | None = None) -> None:
        """`head`: what follows the forward as part of it."""
        step = flight.step
        tokens = rectangle.tokens(step)
        sources, targets = picks.among(tokens)
        n = power_of_two(len(sources))
        shape = ForwardShape(rectangle.n_rows, rectangle.width, rectangle.columns, n)
        if shape not in self._forwards:
            self._forwards[shape] = ForwardFrame(shape, self._n_groups, self._device)
        frame = self._forwards[shape]
        frame.send(
            ids=rectangle.ids(step),
            starts=rectangle.starts(step),
            counts=rectangle.counts(),
            slots=rectangle.slots(step, self.slots.scratch),
            sources=_padded(sources, n, 0),
            targets=_padded(targets, n, self._n_outputs),
        )
        given = None if step.embeddings is None else _given_to(tokens, step.embeddings)
        hidden = self._hidden[: frame.rows.n_tokens]

        def work() -> None:
            for table, own in zip(self.slots.tables, frame.rows.tables, strict=True):
                own.copy_(table[:, : shape.columns].index_select(0, frame.rows.slots))
            self._forward.hidden(frame.views["ids"], frame.rows, self.slots.state, given, hidden)
            if n:
                self._picked[frame.views["targets"].long()] = hidden[frame.views["sources"].long()]
            if head is not None:
                self._head(head)

        key: Hashable = ("forward", shape, *([] if head is None else [head.n_outputs, head.is_best]))
        if given is None:
            self._do(flight, key, work, is_decode=is_decode(rectangle))
        else:
            work()
        self._take_for_host(rectangle, tokens, hidden, flight.host)

    def _head(self, shape: SamplerShape) -> None:
        at_once = self._head_rows or shape.n_outputs
        for first in range(0, shape.n_outputs, at_once):
            part = slice(first, first + at_once)
            if shape.is_best:
                self._forward.best(self._picked[part], self._best[part])
            else:
                self._forward.logits(self._picked[part], self._logits[part])

    def _take_for_host(self, rectangle: Rectangle, tokens: Int32s, hidden: Tensor, host: HostPart) -> None:
        """Hidden states and logits that rows want, on their way to the host before the next rectangle comes."""
        vectors = host.vectors_in(rectangle)
        if len(vectors):
            host.take_vectors(vectors, self._device.download(hidden[self._indices(tokens[vectors])]))
        logits = host.logits_in(rectangle)
        for first in range(0, len(logits), HEAD_ROWS):
            part = logits[first : first + HEAD_ROWS]
            rows = np.resize(tokens[part], self._head_rows or len(part))
            out = torch.empty((len(rows), self._vocab_size), device=hidden.device)
            self._forward.logits(hidden[self._indices(rows)], out)
            host.take_logits(part, self._device.download(out[: len(part)]))

    def _indices(self, tokens: Int32s) -> Tensor:
        out = torch.empty(len(tokens), dtype=torch.int64, device=self._device.torch_device)
        self._device.upload(out, tokens.astype(np.int64))
        return out

    def _make_outputs(self, n: int) -> None:
        """The last row of `picked` is scratch."""
        on: dict[str, Any] = {"device": self._device.torch_device}
        self._n_outputs = n
        self._picked = torch.zeros((n + 1, self._width), **on)
        self._best = torch.zeros(n, dtype=torch.int32, **on)
        self._logits = torch.zeros((n, self._vocab_size), **on)
        self._masks = torch.zeros((n, mask_words(self._vocab_size)), dtype=torch.int32, **on)
        self._samplers.clear()
        self._device.forget_graphs()


class _Picks:
    """Which ids' hidden states are sampled from, and in which row of the outputs."""

    def __init__(self, step: Step, sampled: Sequence[SampledRow], width: int) -> None:
        flat: list[int] = []
        targets: list[int] = []
        for r, each in enumerate(sampled):
            end, n = int(step.row_starts[each.index + 1]), 1 + each.row.n_drafts
            flat += range(end - n, end)
            targets += range(r * width, r * width + n)
        self._flat, self._targets = np.array(flat, dtype=np.int32), np.array(targets, dtype=np.int32)

    def among(self, tokens: Int32s) -> tuple[Int32s, Int32s]:
        """Tokens of a rectangle (Rectangle.tokens), rows of the outputs."""
        own = tokens[self._flat]
        return own[own >= 0], self._targets[own >= 0]


def _sampled_rows(step: Step) -> list[SampledRow]:
    found = []
    for index, row in enumerate(step.rows):
        if row.wants & WANT_SAMPLE and row.sampler is not None and not is_sampled_on_host(row):
            end = int(step.row_starts[index + 1])
            found.append(SampledRow(index, row, step.ids[end - row.n_drafts : end]))
    return found


def _masks_are_there(step: Step, sampled: Sequence[SampledRow]) -> bool:
    flags = step.mask_flags
    if flags is None:
        return True
    return all(
        flags[each.row.mask_row : each.row.mask_row + 1 + each.row.n_drafts].all()
        for each in sampled
        if each.row.mask_row >= 0
    )


def _padded(values: Int32s, n: int, filler: int) -> Int32s:
    out = np.full(n, filler, dtype=np.int32)
    out[: len(values)] = values
    return out


def _given_to(tokens: Int32s, given: Embeddings) -> Embeddings | None:
    """`tokens`: those of a rectangle."""
    own = tokens[given.tokens]
    is_here = own >= 0
    if not is_here.any():
        return None
    return Embeddings(own[is_here], np.ascontiguousarray(given.vectors[is_here], dtype=np.float32))
