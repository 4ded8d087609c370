"""Rows of embedding and head beyond the vocabulary: as if they weren't there, on every backend and every path."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.backends import choose
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.config import Config
from imp_server.core import InvalidModel, InvalidRequest, SamplingParams
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.model_files import open_with_tokenizer
from imp_server.models.opening import open_model
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models

from tests.backends.driver import Driver
from tests.engine.tiny_engine import ask, request
from tests.models.tiny_gguf import write_tiny_llama
from tests.models.tiny_hf import write_tiny_folder

N_IDS, N_ROWS, HOLE = 369, 384, 17
LAWS = {
    "greedy": SamplingParams(temperature=0.0),
    "hot": SamplingParams(temperature=50.0, seed=1),
    "penalised": SamplingParams(temperature=9.0, repetition_penalty=1.3, presence_penalty=0.5, seed=2),
    "biased": SamplingParams(temperature=9.0, logit_bias=((5, 1.0),), seed=3),
    "truncated": SamplingParams(temperature=9.0, top_k=300, top_p=0.99, min_p=1e-4, seed=4),
    "mirostat": SamplingParams(temperature=9.0, mirostat=2, mirostat_tau=9.0, seed=5),
    "on host": SamplingParams(temperature=9.0, typical_p=0.99, dry_multiplier=0.5, xtc_probability=0.1, seed=6),
}


def tokenizer_keys(hole: bool = True) -> dict[str, Any]:
    """Single characters and an end token; one id in the middle that writes nothing."""
    tokens = [*(chr(256 + i) if i < 256 else f"w{i}" for i in range(N_IDS - 1)), "<|end|>"]
    types = [1] * (N_IDS - 1) + [3]
    if hole:
        types[HOLE] = 5
    return {
        "model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": [], "eos_token_id": N_IDS - 1,
    }  # fmt: skip


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The padding's logits would win: its rows point where everything points."""
    path = tmp_path_factory.mktemp("models") / "padded.gguf"
    return write_tiny_llama(path, vocab=N_ROWS, tokenizer=tokenizer_keys(), loud_rows=range(N_IDS, N_ROWS))


def answers(path: Path, backend: str, wanted: Sequence[dict[str, Any]], **more: Any) -> list[Any]:
    if backend == "cpu" and choose("auto") == "reference":
        pytest.skip("the native library isn't built")
    config = Config.of({"engine.backend": backend, "cpu.pack_cache": False, "kv_cache.max_blocks": 64, **more})

    async def body() -> list[Any]:
        engine = InlineEngine(
            functools.partial(build_engine, str(path), "m", config.for_engine()), check_each_step=True
        )
        await engine.start()
        assert engine.info.vocab_size == N_IDS
        try:
            return await asyncio.gather(*(ask(engine, request(engine, [3, 4, 5], 40, **each)) for each in wanted))
        finally:
            await engine.stop()

    return asyncio.run(body())


def named(answer: Any) -> set[int]:
    entries = [*answer.logprobs, *answer.prompt_logprobs]
    return {*answer.ids, *(i for entry in entries for i, _ in entry.top)}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_they_are_never_sampled_nor_named(padded: Path, backend: str) -> None:
    wanted = [
        {"sampling": law, "logprobs": 128, "prompt_logprobs": 128, "logprobs_as_drawn": drawn}
        for law in LAWS.values()
        for drawn in (False, True)
    ]
    seen: set[int] = set()
    for (answer,) in answers(padded, backend, wanted):
        assert answer.ids and max(named(answer)) < N_IDS and HOLE not in named(answer)
        seen |= named(answer)
    assert len(seen) > 300, "all others are"


def test_drafts_and_plain_rows_agree(padded: Path) -> None:
    more = {"speculative.draft_model": str(padded), "speculative.cost_gate": False}
    wanted = [{"sampling": law} for law in LAWS.values()]
    plain, drafted = answers(padded, "cpu", wanted), answers(padded, "cpu", wanted, **more)
    assert [a.ids for (a,) in plain] == [a.ids for (a,) in drafted]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_logits_are_those_of_the_whole_matrix(padded: Path, backend: str) -> None:
    """Padding cut off changes no other logit, and no embedding: the row of each id stays its own."""
    if backend == "cpu" and choose("auto") == "reference":
        pytest.skip("the native library isn't built")
    kind: Any = CpuBackend if backend == "cpu" else ReferenceBackend
    ids = [3, 40, 300, N_IDS - 1]
    whole = Driver(kind(open_model(padded))).logits(ids, chunk=4)
    cut = Driver(kind(open_with_tokenizer(padded)[0])).logits(ids, chunk=4)
    assert whole.shape[1] == N_ROWS and int(whole.argmax(axis=1).min()) >= N_IDS, "the padding would have won"
    np.testing.assert_array_equal(cut, whole[:, :N_IDS])


def test_ids_beyond_the_vocabulary_are_refused_in_a_prompt(padded: Path) -> None:
    config = Config.of({"engine.backend": "reference", "kv_cache.max_blocks": 64})

    async def body() -> None:
        engine = InlineEngine(functools.partial(build_engine, str(padded), "m", config.for_engine()))
        await engine.start()
        try:
            for task in ("generate", "embed"):
                with pytest.raises(InvalidRequest, match=f"token id {N_IDS} isn't in the vocabulary"):
                    await ask(engine, request(engine, [3, N_IDS], 4, task=task))
        finally:
            await engine.stop()

    asyncio.run(body())


def test_more_tokens_than_rows_are_refused_at_load(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", vocab=N_IDS - 1, tokenizer=tokenizer_keys())
    with pytest.raises(InvalidModel, match="369 ids, the model's embedding only 368 rows"):
        open_with_tokenizer(path)


@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_with_a_padded_head(tmp_path: Path, tied: bool) -> None:
    write_tiny_folder(tmp_path, vocab_size=N_ROWS, hidden_size=64, tie_word_embeddings=tied)
    vocab = {chr(256 + i): i for i in range(N_IDS)}
    Tokenizer(models.BPE(vocab=vocab, merges=[])).save(str(tmp_path / "tokenizer.json"))
    weights = load_file(tmp_path / "model.safetensors")
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    weights[head][N_IDS:] *= 100
    save_file(weights, tmp_path / "model.safetensors")
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == N_ROWS
    wanted = [{"sampling": law, "logprobs": 128} for law in LAWS.values()]
    for (answer,) in answers(tmp_path, "cpu", wanted):
        assert answer.ids and max(named(answer)) < N_IDS
