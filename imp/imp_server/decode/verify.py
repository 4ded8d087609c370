"""Sampling one row, drafts included: drafts change how many tokens a step yields, never which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from imp_server.decode.logprobs import PositionLogprobs, drawn_logprobs, position_logprobs
from imp_server.decode.processors import process
from imp_server.decode.sampling import sample
from imp_server.decode.state import SamplerState


@dataclass(slots=True)
class Verified:
    """`tokens`: the accepted drafts, then one fresh token (none after a dead end)."""

    tokens: list[int] = field(default_factory=list)
    n_accepted: int = 0
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    dead_end: bool = False
    mu: float = 0.0
    mus: list[float] = field(default_factory=list)
    """mu after each of `tokens`: whoever takes a part of them only goes on from there."""


def sample_row(
    logits: NDArray[np.float32],
    state: SamplerState,
    drafts: Sequence[int] = (),
    masks: NDArray[np.uint32] | None = None,
    n_logprobs: int = -1,
    *,
    as_drawn: bool = False,
) -> Verified:
    """Walk the positions in order; a draft is accepted iff it is what would have been sampled there.

    `logits` [1 + len(drafts), vocab] raw, row j after j drafts; `masks` one per row. `n_logprobs` -1 = none.
    `as_drawn`: logprobs are those that tokens were drawn with, after the truncations.
    Each position sees the history (and mirostat's mu) after the accepted prefix and its own noise.
    """
    result = Verified(mu=state.mirostat_mu)
    history = state.history
    for j in range(1 + len(drafts)):
        mask = None if masks is None else masks[j]
        processed = process(logits[j], state.params, history, state.n_prompt, mask, state.token_bytes)
        at = (state.params, state.choice, state.position + j, result.mu)
        token_id, result.mu = sample(processed, *at)
        if token_id < 0:
            result.dead_end = True
            break
        result.tokens.append(token_id)
        result.mus.append(result.mu)
        if n_logprobs >= 0:
            result.logprobs.append(
                drawn_logprobs(processed, token_id, n_logprobs, *at)
                if as_drawn
                else position_logprobs(processed, token_id, n_logprobs)
            )
        if j == len(drafts) or token_id != drafts[j]:
            break
        result.n_accepted += 1
        history = np.append(history, np.int32(token_id))
    return result
