"""What a backend's row result says, in the terms of the messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import RowResult
from imp_server.core import TokenLogprob
from imp_server.decode.logprobs import position_logprobs
from imp_server.schedule.rows import Chunk


def sampled_logprobs(ids: Sequence[int], result: RowResult) -> list[TokenLogprob]:
    """One entry per sampled id; empty if none were asked for."""
    lp = result.logprobs
    if lp is None:
        return []
    tops = [
        tuple(pair for pair in zip(top_ids, top) if pair[0] >= 0)
        for top_ids, top in zip(lp.top_ids.tolist(), lp.top.tolist(), strict=True)
    ]
    values, ranks = lp.token.tolist(), lp.rank.tolist()
    return [TokenLogprob(t, values[n], tops[n], ranks[n]) for n, t in enumerate(ids)]


def prompt_logprobs(
    prompt: NDArray[np.int32], chunk: Chunk, logits: NDArray[np.float32], k: int, never: Sequence[int] = ()
) -> list[TokenLogprob]:
    """Entries of the prompt tokens that follow the chunk's positions. `logits` [chunk tokens, vocab] raw.

    `never`: ids that no token can be.
    """
    if never:
        logits = logits.copy()
        logits[:, list(never)] = -np.inf
    entries = []
    for offset in range(min(chunk.n_tokens, len(prompt) - 1 - chunk.start)):
        token_id = int(prompt[chunk.start + offset + 1])
        at = position_logprobs(logits[offset], token_id, k)
        top = tuple(zip(at.top_ids.tolist(), at.top.tolist()))
        entries.append(TokenLogprob(token_id, at.token, top, at.rank))
    return entries


def vectors(result: RowResult) -> tuple[bytes, ...]:
    """float32 bytes of what an embedding or a scoring request asked for."""
    found = result.pooled if result.pooled is not None else result.logits
    return () if found is None else (np.ascontiguousarray(found, dtype="<f4").tobytes(),)
