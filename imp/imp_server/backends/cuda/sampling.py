"""The host's side of sampling on the device: what rows ask for as arrays, and arrays as results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from imp_server.backends.base import Int32s, RowResult, SampledLogprobs, StepRow
from imp_server.backends.cuda.buffers import PackedArrays, power_of_two
from imp_server.backends.cuda.device import Device
from imp_server.backends.cuda.operations import Flags, Floats, Ints, SampleInputs, SampleOutputs
from imp_server.backends.cuda.slots import needs_history
from imp_server.backends.sampled_rows import is_plain_best, n_history

Tensor = torch.Tensor
_WORD = 32


@dataclass(frozen=True, slots=True)
class SamplerShape:
    """The bucket of a step's sampling."""

    n_rows: int
    width: int
    """1 + drafts."""
    n_biases: int
    n_logprobs: int
    n_history: int
    """Ids of the longest history that is looked at; 0 = none is."""
    draws: bool
    is_best: bool
    """All rows are the best of their raw logits."""

    @property
    def n_outputs(self) -> int:
        return self.n_rows * self.width


@dataclass(frozen=True, slots=True)
class SampledRow:
    """A row of the step that is sampled on the device. `drafts`: those of its chunk."""

    index: int
    row: StepRow
    drafts: Int32s


def mask_words(vocab_size: int) -> int:
    return -(-vocab_size // _WORD)


def shape_of(rows: Sequence[SampledRow], vocab_size: int) -> SamplerShape:
    """Of at least one row."""
    is_best = all(is_plain_best(each.row) for each in rows)
    histories = [n_history(each.row) for each in rows if needs_history(each.row)]
    logprobs = max(each.row.n_logprobs for each in rows)
    params = [each.row.sampler.params for each in rows if each.row.sampler is not None]
    return SamplerShape(
        n_rows=power_of_two(len(rows)),
        width=power_of_two(1 + max(each.row.n_drafts for each in rows)),
        n_biases=0 if is_best else power_of_two(max(len(_biases(each.row)[0]) for each in rows)),
        n_logprobs=-1 if logprobs < 0 else min(power_of_two(logprobs), vocab_size),
        n_history=power_of_two(max([0, *histories])),
        draws=any(p.temperature > 0 for p in params),
        is_best=is_best,
    )


def _biases(row: StepRow) -> tuple[list[int], list[float]]:
    """Ids and what is added to them; bans last."""
    assert row.sampler is not None
    p = row.sampler.params
    banned = p.banned_at(n_history(row) - row.sampler.n_prompt)
    ids = [i for i, _ in p.logit_bias] + list(banned)
    return ids, [b for _, b in p.logit_bias] + [-np.inf] * len(banned)


class SamplerFrame:
    """Owner of the device's inputs and outputs of one bucket, for all its steps."""

    def __init__(self, shape: SamplerShape, masks: Tensor, device: Device) -> None:
        """`masks` [at least shape.n_outputs, words]: of one step at a time."""
        self.shape, self._device = shape, device
        n, width, k = shape.n_rows, shape.width, max(0, shape.n_logprobs)
        self._inputs = PackedArrays(
            {
                "ints": (n, len(Ints)),
                "slots": (n,),
                "drafts": (n, width - 1),
                "bias_ids": (n, shape.n_biases),
                "biases": (n, shape.n_biases),
            },
            frozenset({"biases"}),
        )
        asked = shape.n_logprobs >= 0
        self._outputs = PackedArrays(
            {
                "tokens": (n, width),
                "n_tokens": (n,),
                "n_accepted": (n,),
                "flags": (n,),
                "logprobs": (n, width, 1 + k if asked else 0),
                "ranks": (n, width),
                "top_ids": (n, width, k),
            },
            frozenset({"logprobs"}),
        )
        on: dict[str, Any] = {"device": device.torch_device}
        self._sent = torch.zeros(self._inputs.size, dtype=torch.int32, **on)
        self._floats = torch.zeros((n, len(Floats)), dtype=torch.float64, **on)
        self._masks = masks[: shape.n_outputs]
        self._made = torch.zeros(self._outputs.size, dtype=torch.int32, **on)
        self.inputs = SampleInputs(
            floats=self._floats,
            masks=self._masks,
            uses_history=shape.n_history > 0,
            n_history_read=shape.n_history,
            draws=shape.draws,
            n_logprobs=shape.n_logprobs,
            **self._inputs.tensors(self._sent),
        )
        self.outputs = SampleOutputs(**self._outputs.tensors(self._made))

    def prepare(self, rows: Sequence[SampledRow], scratch: int) -> PreparedSampling:
        """What can be said before masks are there; samplers are read now."""
        whole = np.zeros(self._inputs.size, dtype=np.int32)
        floats = np.zeros((self.shape.n_rows, len(Floats)), dtype=np.float64)
        arrays = self._inputs.arrays(whole)
        arrays["slots"][:] = scratch
        arrays["bias_ids"][:] = -1
        for r, each in enumerate(rows):
            _fill(arrays, floats, r, each)
        return PreparedSampling(self, rows, whole, floats)

    def send(self, whole: Int32s, floats: npt.NDArray[np.float64], masks: Int32s | None) -> None:
        self._device.upload(self._sent, whole)
        self._device.upload(self._floats, floats)
        if masks is not None:
            self._device.upload(self._masks[: len(masks)], masks)

    def ints_of(self, whole: Int32s) -> Int32s:
        ints: Int32s = self._inputs.arrays(whole)["ints"]
        return ints

    def download(self) -> Any:
        return self._device.download(self._made)

    def results(self, made: Int32s, rows: Sequence[SampledRow], n_positions: Sequence[int]) -> list[RowResult]:
        """`made`: what `download` brought. `n_positions`: that were looked at of each row; 0 = its masks came late."""
        arrays = self._outputs.arrays(made)
        return [_result(arrays, r, each, n) for r, (each, n) in enumerate(zip(rows, n_positions, strict=True))]


def _fill(arrays: dict[str, npt.NDArray[Any]], floats: npt.NDArray[np.float64], r: int, each: SampledRow) -> None:
    row, state = each.row, each.row.sampler
    assert state is not None
    p, ints = state.params, arrays["ints"][r]
    history = n_history(row)
    seed = p.seed & 0xFFFFFFFFFFFFFFFF
    words = np.array([seed & 0xFFFFFFFF, seed >> 32, state.choice & 0xFFFFFFFF], dtype=np.uint32).view(np.int32)
    ints[Ints.N_POSITIONS] = 1 + row.n_drafts
    ints[Ints.MASK_FIRST] = -1
    ints[Ints.N_HISTORY], ints[Ints.N_PROMPT] = history, state.n_prompt
    ints[Ints.REPEAT_LAST_N], ints[Ints.TOP_K] = p.repeat_last_n, max(0, p.top_k)
    ints[[Ints.SEED_LOW, Ints.SEED_HIGH, Ints.CHOICE]] = words
    ints[Ints.POSITION] = history - state.n_prompt + state.n_gone
    ints[Ints.COUNTS] = needs_history(row)
    floats[r, Floats.TEMPERATURE], floats[r, Floats.TOP_P] = p.temperature, p.top_p
    floats[r, Floats.MIN_P], floats[r, Floats.REPETITION] = p.min_p, p.repetition_penalty
    floats[r, Floats.PRESENCE], floats[r, Floats.FREQUENCY] = p.presence_penalty, p.frequency_penalty
    arrays["slots"][r] = row.slot
    arrays["drafts"][r, : row.n_drafts] = each.drafts
    if arrays["bias_ids"].shape[1]:
        ids, biases = _biases(row)
        arrays["bias_ids"][r, : len(ids)], arrays["biases"][r, : len(ids)] = ids, biases


class PreparedSampling:
    """A step's sampling, until its masks are there."""

    def __init__(
        self, frame: SamplerFrame, rows: Sequence[SampledRow], whole: Int32s, floats: npt.NDArray[np.float64]
    ) -> None:
        self.frame, self.rows = frame, rows
        self._whole, self._floats = whole, floats
        self.n_positions = [1 + each.row.n_drafts for each in rows]

    def send(self, masks: npt.NDArray[np.uint32] | None, n_ready: Sequence[int]) -> None:
        """`masks`: those of the step; `n_ready`: of each row, how many are filled of those that it wants."""
        ints, width = self.frame.ints_of(self._whole), self.frame.shape.width
        own: list[npt.NDArray[np.uint32]] = []
        for r, (each, ready) in enumerate(zip(self.rows, n_ready, strict=True)):
            ints[r, Ints.N_POSITIONS] = self.n_positions[r] = ready
            if each.row.mask_row >= 0 and masks is not None:
                ints[r, Ints.MASK_FIRST] = len(own)
                own += list(masks[each.row.mask_row : each.row.mask_row + ready])
                own += [masks[each.row.mask_row]] * (width - ready)  # of positions that nobody looks at
        packed = np.stack(own).view(np.int32) if own else None
        self.frame.send(self._whole, self._floats, packed)


def _result(arrays: dict[str, npt.NDArray[Any]], r: int, each: SampledRow, n_positions: int) -> RowResult:
    row, n = each.row, int(arrays["n_tokens"][r])
    flags = int(arrays["flags"][r])
    if n_positions == 0:
        return RowResult(np.empty(0, dtype=np.int32), mask_late=True, n_left_out=row.n_drafts)
    result = RowResult(
        arrays["tokens"][r, :n].copy(),
        int(arrays["n_accepted"][r]),
        dead_end=bool(flags & Flags.DEAD_END),
        n_left_out=1 + row.n_drafts - n_positions,
    )
    if row.n_logprobs >= 0 and not flags & Flags.NOT_NUMBERS:
        k = min(row.n_logprobs, arrays["top_ids"].shape[2]) if n else 0
        logprobs = arrays["logprobs"][r, :n]
        result.logprobs = SampledLogprobs(
            logprobs[:, 0].copy(),
            arrays["ranks"][r, :n].copy(),
            arrays["top_ids"][r, :n, :k].copy(),
            logprobs[:, 1 : 1 + k].copy(),
        )
    return result
