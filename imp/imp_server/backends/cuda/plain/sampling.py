"""The sampling law on tensors: decode/processors.py, sampling.py, verify.py and logprobs.py say what is meant.

Each position is sampled as if its drafts had been taken; then the walk is a running product of agreements. Positions
go by a few at a time, which bounds the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from imp_server.backends.cuda.operations import Flags, Floats, Ints, SampleInputs, SampleOutputs, SlotState
from imp_server.backends.cuda.plain.noise import gumbel

Tensor = torch.Tensor

POSITIONS_AT_ONCE = 16
MASKED = -9999.0
_NOTHING = -1
_LOW = 0xFFFFFFFF


def sample(logits: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
    n_rows, width = out.tokens.shape
    logits = logits.view(n_rows, width, -1)
    n_rows_at_once = max(1, POSITIONS_AT_ONCE // width)
    for first in range(0, n_rows, n_rows_at_once):
        rows = slice(first, min(first + n_rows_at_once, n_rows))
        own, own_out = _part(inputs, rows), _outputs(out, rows)
        found = [
            _sample_some(logits[rows, at : at + POSITIONS_AT_ONCE], at, own, slots, own_out)
            for at in range(0, width, POSITIONS_AT_ONCE)
        ]
        sampled, is_nan = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        _finish(sampled, is_nan, own, slots, own_out)


def _sample_some(
    logits: Tensor, first: int, inputs: SampleInputs, slots: SlotState, out: SampleOutputs
) -> tuple[Tensor, Tensor]:
    """logits [R, n, vocab] of positions [first, first + n) -> their ids, -1 = none, and whether one is no number:
    [R, n] each."""
    processed = _processed(logits, first, inputs, slots)
    sampled = first_best(processed)
    if inputs.draws:
        sampled = torch.where(_is_drawn(inputs)[:, None], _drawn(processed, first, inputs), sampled)
    sampled = torch.where((processed > -torch.inf).any(-1), sampled, _NOTHING)
    if inputs.n_logprobs >= 0:
        _logprobs(processed, sampled, slice(first, first + logits.shape[1]), inputs.n_logprobs, out)
    return sampled, processed.isnan().any(-1)


def take_best(best: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
    best = best.view(out.tokens.shape).long()
    _finish(best, best < 0, inputs, slots, out, keeps=False)


def _part(inputs: SampleInputs, part: slice) -> SampleInputs:
    names = ("ints", "floats", "slots", "drafts", "bias_ids", "biases")
    return replace(inputs, **{name: getattr(inputs, name)[part] for name in names})


def _outputs(out: SampleOutputs, part: slice) -> SampleOutputs:
    names = ("tokens", "n_tokens", "n_accepted", "flags", "logprobs", "ranks", "top_ids")
    return SampleOutputs(**{name: getattr(out, name)[part] for name in names})


def _int(inputs: SampleInputs, column: Ints) -> Tensor:
    """int64 [R, 1]."""
    return inputs.ints[:, column, None].long()


def _float(inputs: SampleInputs, column: Floats) -> Tensor:
    """float64 [R, 1]."""
    return inputs.floats[:, column, None]


def _is_drawn(inputs: SampleInputs) -> Tensor:
    return inputs.floats[:, Floats.TEMPERATURE] > 0


def first_best(x: Tensor) -> Tensor:
    """int64 [..]: the first largest of the last dimension."""
    peak = x.amax(dim=-1, keepdim=True)
    indices = torch.arange(x.shape[-1], device=x.device)
    return torch.where(x == peak, indices, x.shape[-1] - 1).amin(dim=-1)


# --- bias, penalties, mask ---------------------------------------------------------------------------------------


def _processed(logits: Tensor, first: int, inputs: SampleInputs, slots: SlotState) -> Tensor:
    """float32 [R, n, vocab] of positions from `first` on."""
    out, width = logits, logits.shape[1]
    if inputs.bias_ids.shape[1]:
        ids = inputs.bias_ids.long().clamp_min(0)[:, None].expand(-1, width, -1)
        biases = torch.where(inputs.bias_ids >= 0, inputs.biases, 0.0)[:, None].expand(-1, width, -1)
        out = out.scatter_add(2, ids, biases)
    if inputs.uses_history:
        out = _penalised(out, first, inputs, slots)
    mask = _int(inputs, Ints.MASK_FIRST)
    rows = (mask + first + torch.arange(width, device=out.device)).clamp(0, len(inputs.masks) - 1)
    ids = torch.arange(out.shape[-1], device=out.device)
    words = inputs.masks[rows][..., ids >> 5]
    is_allowed = ((words >> (ids & 31)) & 1).bool() | (mask < 0)[..., None]
    return torch.where(is_allowed, out, -torch.inf)


def _penalised(out: Tensor, first: int, inputs: SampleInputs, slots: SlotState) -> Tensor:
    history = _known_ids(inputs, slots, out.shape[-1])
    at = torch.arange(history.shape[1], device=out.device)
    n_read, counts = inputs.n_history_read, _int(inputs, Ints.COUNTS) > 0
    n_known, n_prompt = _int(inputs, Ints.N_HISTORY), _int(inputs, Ints.N_PROMPT)
    last = _int(inputs, Ints.REPEAT_LAST_N)
    # Place of each column in the text: of the history itself, then of drafts.
    place = torch.where(at < n_read, at, n_known + at - n_read)
    is_real = torch.where(at < n_read, at < n_known, True) & counts
    penalty = _float(inputs, Floats.REPETITION).float()
    presence, frequency = (_float(inputs, which).float() for which in (Floats.PRESENCE, Floats.FREQUENCY))
    done = []
    for j in range(out.shape[1]):
        end = n_known + first + j
        start = torch.where(last > 0, (end - last).clamp_min(0), 0)
        in_window = is_real & (place >= start) & (place < end)
        own = out[:, j]
        zeros = torch.zeros_like(own)
        seen = zeros.scatter_add(1, history, in_window.float())
        changed = torch.where(own > 0, own / penalty, own * penalty)
        own = torch.where(seen > 0, changed, own)
        n = zeros.scatter_add(1, history, (in_window & (place >= n_prompt)).float())
        done.append(torch.where(n > 0, own - (n * frequency + presence), own))
    return torch.stack(done, dim=1)


def _known_ids(inputs: SampleInputs, slots: SlotState, vocab: int) -> Tensor:
    """int64 [R, n_history_read + D - 1]: the histories, then the drafts; what isn't real is some id."""
    read = slots.histories[:, : inputs.n_history_read][inputs.slots.long()]
    return torch.cat([read, inputs.drafts], dim=1).long().clamp(0, vocab - 1)


# --- temperature, truncations, noise -----------------------------------------------------------------------------


def _drawn(processed: Tensor, first: int, inputs: SampleInputs) -> Tensor:
    """int64 [R, n]."""
    values, ids = processed.sort(dim=-1, descending=True, stable=True)
    at = torch.arange(values.shape[-1], device=values.device)
    temperature = _float(inputs, Floats.TEMPERATURE)
    scaled = values.double() / torch.where(temperature > 0, temperature, 1.0)[..., None]
    top_k = _int(inputs, Ints.TOP_K)[..., None]
    n = (values > -torch.inf).sum(dim=-1, keepdim=True)
    n = torch.where(top_k > 0, torch.minimum(n, top_k), n)
    share = torch.exp(scaled - scaled[..., :1])
    top_p, min_p = (_float(inputs, which)[..., None] for which in (Floats.TOP_P, Floats.MIN_P))
    weights = torch.where(at < n, share, 0.0)
    mass = torch.cumsum(weights / weights.sum(dim=-1, keepdim=True), dim=-1)
    n_until = torch.minimum(((mass < top_p) & (at < n)).sum(dim=-1, keepdim=True) + 1, n)
    n = torch.where(top_p < 1.0, n_until, n)
    n_likely = ((share >= min_p) & (at < n)).sum(dim=-1, keepdim=True).clamp_min(1)
    n = torch.where(min_p > 0.0, n_likely, n)
    position = _int(inputs, Ints.POSITION) + first + torch.arange(values.shape[1], device=values.device)
    low, high, choice = (
        _int(inputs, which)[..., None] & _LOW for which in (Ints.SEED_LOW, Ints.SEED_HIGH, Ints.CHOICE)
    )
    scores = scaled + gumbel(low, high, choice, position[..., None] & _LOW, ids)
    winner = first_best(torch.where(at < n, scores, -torch.inf))
    return ids.gather(-1, winner[..., None])[..., 0]


# --- drafts, results ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """[R] each."""

    n_tokens: Tensor
    n_accepted: Tensor
    flags: Tensor


def _walk(sampled: Tensor, is_nan: Tensor, inputs: SampleInputs) -> _Walk:
    """Positions in order, up to the first that isn't what its draft says."""
    n_rows, width = sampled.shape
    wanted = inputs.ints[:, Ints.N_POSITIONS].long()
    at = torch.arange(width, device=sampled.device)
    agrees = sampled.new_zeros((n_rows, width))
    if width > 1:
        same = (sampled[:, :-1] == inputs.drafts) & (at[:-1] < wanted[:, None] - 1)
        agrees = torch.cat([same.long(), agrees[:, :1]], dim=1)
    n_accepted = torch.cumprod(agrees, dim=1).sum(dim=1)
    is_sampled = wanted > 0
    is_broken = (is_nan & (at <= n_accepted[:, None])).any(dim=1) & is_sampled
    is_dead = (sampled.gather(1, n_accepted[:, None])[:, 0] < 0) & is_sampled & ~is_broken
    n_accepted = torch.where(is_broken | ~is_sampled, 0, n_accepted)
    n_tokens = torch.where(is_broken | ~is_sampled, 0, n_accepted + (~is_dead).long())
    return _Walk(n_tokens, n_accepted, is_dead.long() * Flags.DEAD_END + is_broken.long() * Flags.NOT_NUMBERS)


def _finish(
    sampled: Tensor, is_nan: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs, *, keeps: bool = True
) -> None:
    walk = _walk(sampled, is_nan, inputs)
    out.tokens.copy_(sampled)
    out.n_tokens.copy_(walk.n_tokens)
    out.n_accepted.copy_(walk.n_accepted)
    out.flags.copy_(walk.flags)
    is_sampled = inputs.ints[:, Ints.N_POSITIONS] > 0
    scratch = len(slots.last) - 1
    slot = torch.where(is_sampled, inputs.slots, scratch).long()
    newest = sampled.gather(1, (walk.n_tokens - 1).clamp_min(0)[:, None])[:, 0]
    slots.last[slot] = torch.where(walk.n_tokens > 0, newest, _NOTHING).int()
    if keeps and inputs.uses_history:
        _keep(sampled, walk.n_tokens, slot, inputs, slots)


def _keep(sampled: Tensor, n_tokens: Tensor, slot: Tensor, inputs: SampleInputs, slots: SlotState) -> None:
    at = torch.arange(sampled.shape[1], device=sampled.device)
    columns = _int(inputs, Ints.N_HISTORY) + at
    capacity = slots.histories.shape[1]
    is_kept = (at < n_tokens[:, None]) & (columns < capacity)
    where = torch.where(is_kept, slot[:, None], len(slots.histories) - 1)
    slots.histories[where, columns.clamp(max=capacity - 1)] = sampled.int()


def _logprobs(processed: Tensor, sampled: Tensor, at: slice, n_best: int, out: SampleOutputs) -> None:
    """To the positions `at` of `out`."""
    wide = processed.double()
    peak = wide.amax(dim=-1, keepdim=True)
    log_sum = peak + torch.log(torch.exp(wide - peak).sum(dim=-1, keepdim=True))
    token = sampled.clamp_min(0)[..., None]
    chosen = processed.gather(-1, token)
    ids = torch.arange(processed.shape[-1], device=processed.device)
    is_before = (processed > chosen) | ((processed == chosen) & (ids < token))
    out.ranks[:, at].copy_(1 + is_before.sum(dim=-1))
    out.logprobs[:, at, :1].copy_((wide.gather(-1, token) - log_sum).clamp_min(MASKED))
    if n_best > 0:
        values, best = processed.sort(dim=-1, descending=True, stable=True)
        out.top_ids[:, at].copy_(best[..., :n_best])
        out.logprobs[:, at, 1:].copy_((values[..., :n_best].double() - log_sum).clamp_min(MASKED))
