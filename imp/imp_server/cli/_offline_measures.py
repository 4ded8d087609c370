"""What imp-cli measures: the speed of one stream, and the perplexity of a text."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

from imp_server.core import ConfigError, GenerateRequest, GenerationOptions, OutputPlan, SamplingParams, pack_ids
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.messages import RowFinish
from imp_server.vocab.tokenizer import Tokenizer

_WINDOW = 2048
"""Tokens that are read together, where the context holds as many."""
_FIRST_ID = 100
"""Random prompts have no lower ids: control tokens are among those."""


async def measure(client: InlineEngine, n_prompt: int, n_tokens: int, n_rounds: int) -> dict[str, Any]:
    """Medians over the rounds; prompts are random, so nothing is known of them."""
    room = client.info.context_length
    if n_prompt + n_tokens > room:
        raise ConfigError(f"--bench-pp {n_prompt} and {n_tokens} tokens don't fit into a context of {room}")
    ends = [await _round(client, n_prompt, n_tokens, number) for number in range(n_rounds + 1)][1:]  # the first warms
    pp_ms = statistics.median(end.prefill_ms for end in ends)
    tg_ms = statistics.median(end.decode_ms for end in ends)
    return {
        "prefill_tps": 1e3 * n_prompt / pp_ms if pp_ms else 0.0,
        "decode_tps": 1e3 * (n_tokens - 1) / tg_ms if tg_ms else 0.0,
        "pp_tokens": n_prompt,
        "pp_ms": pp_ms,
        "tg_tokens": n_tokens,
        "tg_ms": tg_ms,
        "reps": n_rounds,
        "peak_vram_mib": 0,
    }


async def _round(client: InlineEngine, n_prompt: int, n_tokens: int, seed: int) -> RowFinish:
    ids = np.random.default_rng(seed).integers(_FIRST_ID, client.info.vocab_size, n_prompt)
    request = GenerateRequest(
        key=client.new_key(),
        ids=pack_ids(ids.tolist()),
        plan=OutputPlan(max_tokens=n_tokens),
        sampling=SamplingParams(temperature=1.0, seed=seed),
        options=GenerationOptions(speculative=False),
    )
    finish = None
    async for delta in await client.submit(request):
        finish = delta.finish or finish
    assert finish is not None
    return finish


async def perplexity(client: InlineEngine, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """Of all tokens but the first of each window. Raises ConfigError for a text that has none."""
    ids = tokenizer.encode(text).tolist()
    first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    size = min(_WINDOW, client.info.context_length) - len(first)
    total, n_tokens = 0.0, 0
    for start in range(0, len(ids), size):
        logprobs = await _logprobs(client, [*first, *ids[start : start + size]])
        total, n_tokens = total + sum(logprobs), n_tokens + len(logprobs)
    if not n_tokens:
        raise ConfigError("the text is too short: its perplexity needs two tokens at least")
    return {"perplexity": math.exp(-total / n_tokens), "tokens": n_tokens}


async def _logprobs(client: InlineEngine, ids: list[int]) -> list[float]:
    if len(ids) < 2:
        return []
    request = GenerateRequest(
        key=client.new_key(),
        ids=pack_ids(ids),
        plan=OutputPlan(max_tokens=0),
        options=GenerationOptions(prompt_logprobs=0),
    )
    found: list[float] = []
    async for delta in await client.submit(request):
        found += [entry.logprob for entry in delta.prompt_logprobs]
    return found
