"""Logit processors, the first half of the sampling law: bias -> penalties -> grammar mask.

All arithmetic is float32, written so that every backend can repeat it bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from imp_server.core import SamplingParams
from imp_server.decode.dry import dry_penalties

Float32s = NDArray[np.float32]
Int32s = NDArray[np.int32]


def process(
    logits: Float32s,
    params: SamplingParams,
    history: Int32s,
    n_prompt: int,
    mask: NDArray[np.uint32] | None = None,
    token_bytes: Sequence[bytes] = (),
) -> Float32s:
    """A processed copy of the raw logits [vocab]. `history`: prompt and output ids so far.

    `token_bytes[id]`: what an id writes, for the texts that break a repetition.
    """
    out = np.array(logits, dtype=np.float32)
    _apply_bias(out, params, len(history) - n_prompt)
    _apply_penalties(out, params, history, n_prompt)
    if params.dry_multiplier > 0:
        ids, penalty = dry_penalties(history, params, token_bytes)
        out[ids] -= penalty
    if mask is not None:
        out[~allowed(mask, len(out))] = -np.inf
    return out


def allowed(mask: NDArray[np.uint32], vocab_size: int) -> NDArray[np.bool_]:
    """The mask row as booleans: bit i of word w stands for id 32 w + i."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little", count=vocab_size)
    return bits.view(np.bool_)


def _apply_bias(out: Float32s, params: SamplingParams, n_output: int) -> None:
    for token_id, bias in params.logit_bias:
        out[token_id] += np.float32(bias)
    if banned := params.banned_at(n_output):
        out[list(banned)] = -np.inf


def _apply_penalties(out: Float32s, params: SamplingParams, history: Int32s, n_prompt: int) -> None:
    """Repetition looks at prompt and output, presence and frequency at the output; all within the window.

    l > 0: l / r, else l * r; then l - (count * frequency + presence), count and both products in float32.
    """
    start = max(0, len(history) - params.repeat_last_n) if params.repeat_last_n > 0 else 0
    if params.repetition_penalty != 1.0:
        seen = np.unique(history[start:])
        penalty = np.float32(params.repetition_penalty)
        values = out[seen]
        out[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty or params.frequency_penalty:
        ids, counts = np.unique(history[max(start, n_prompt) :], return_counts=True)
        weight = counts.astype(np.float32) * np.float32(params.frequency_penalty)
        out[ids] -= weight + np.float32(params.presence_penalty)
