"""The configured drafters of a real engine on the native backend: a draft model, its refusals, its memory."""

from __future__ import annotations

import asyncio
import functools
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.backends import choose
from imp_server.config import Config
from imp_server.core import ConfigError, HostOutOfMemory, SamplingParams, UserFault
from imp_server.engine.build import BuiltEngine, build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.weights.header import read_header

from tests.engine.tiny_engine import Answer, ask, request
from tests.models.tiny_gguf import write_tiny_llama
from tests.real_model import smollm2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if choose("auto") == "reference":
        pytest.skip("the native library isn't built")
    folder = tmp_path_factory.mktemp("models")
    tokens = [*(chr(256 + i) for i in range(287)), "<|end|>"]
    tokenizer = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 288,
        "token_type": [1] * 287 + [3],
        "eos_token_id": 287,
    }
    return {
        "large": write_tiny_llama(folder / "large.gguf", n_layers=4),
        "small": write_tiny_llama(folder / "small.gguf", n_layers=1, seed=5),
        "padded": write_tiny_llama(folder / "padded.gguf", n_layers=1, vocab=320, seed=5),
        "wider": write_tiny_llama(folder / "wider.gguf", n_layers=1, tokenizer=longer_tokenizer(), seed=5),
        "other": write_tiny_llama(folder / "other.gguf", n_layers=1, tokenizer=tokenizer),
    }


def longer_tokenizer() -> dict[str, Any]:
    """That of the other files and one more word."""
    path = Path(tempfile.mkdtemp()) / "m.gguf"
    keys = dict(read_header(write_tiny_llama(path)).tokenizer)
    return {
        **keys,
        "tokens": [*list(keys["tokens"])[:-1], "word"],
        "token_type": [*keys["token_type"][:-1].tolist(), 1],
    }


Settings = dict[str, Any]


def config(files: dict[str, Path], draft: str = "", more: Settings | None = None) -> Config:
    settings = {"engine.backend": "cpu", "cpu.pack_cache": False, "kv_cache.max_blocks": 64, **(more or {})}
    return Config.of(settings | ({"speculative.draft_model": str(files[draft])} if draft else {}))


def built(files: dict[str, Path], draft: str = "", more: Settings | None = None) -> BuiltEngine:
    return build_engine(
        str(files["large"]), "m", config(files, draft, more).for_engine(), lambda _: None, lambda _: None
    )


def answers(files: dict[str, Path], draft: str, more: Settings | None = None) -> tuple[list[Answer], dict[str, float]]:
    async def body() -> tuple[list[Answer], dict[str, float]]:
        build = functools.partial(build_engine, str(files["large"]), "m", config(files, draft, more).for_engine())
        engine = InlineEngine(build, check_each_step=True)
        await engine.start()
        try:
            wanted = [
                request(engine, [50 + n, 51, 52, n], 40, sampling=SamplingParams(temperature=0.5 * n, seed=n))
                for n in range(3)
            ]
            found = [answer for (answer,) in await asyncio.gather(*(ask(engine, each) for each in wanted))]
            counters, _ = await engine.stats()
            return found, dict(counters)
        finally:
            await engine.stop()

    return asyncio.run(body())


def test_a_draft_model_drafts_and_changes_nothing(files: dict[str, Path]) -> None:
    plain, _ = answers(files, "")
    for draft in ("large", "small", "padded"):
        drafted, counters = answers(files, draft, {"speculative.cost_gate": False})
        assert [a.ids for a in drafted] == [a.ids for a in plain]
        assert counters["spec_model_drafted_total"] > 60
        if draft == "large":
            assert counters["spec_model_accepted_total"] > 0.8 * counters["spec_model_drafted_total"]
    drafted, _ = answers(files, "large")
    assert [a.ids for a in drafted] == [a.ids for a in plain], "whatever the cost table says"


def test_another_tokenizer_is_refused_by_what_differs(files: dict[str, Path]) -> None:
    with pytest.raises(
        ConfigError, match=r"^--draft-model .*: its tokenizer isn't the model's: .*257 ids and the draft model's 288"
    ):
        built(files, "wider")
    with pytest.raises(ConfigError, match="id 0 writes '!' in the model and "):
        built(files, "other")


def test_its_memory_is_part_of_the_plan(files: dict[str, Path]) -> None:
    alone, beside = built(files), built(files, "small")
    assert beside.info.kv_bytes == alone.info.kv_bytes + alone.info.kv_bytes // 4, "one layer beside four"
    assert beside.info.weight_bytes > alone.info.weight_bytes
    sized: Settings = {"kv_cache.max_blocks": 0, "kv_cache.size_mib": 1}
    assert sum(built(files, "small", sized).info.n_blocks) < sum(built(files, "", sized).info.n_blocks)


def test_a_draft_model_that_nobody_asks_is_not_loaded(files: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    nobody: tuple[Settings, ...] = ({"speculative.drafters": ("ngram",)}, {"speculative.enabled": "off"})
    for more in nobody:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            engine = built(files, "small", more)
        warned = [record.message for record in caplog.records if "draft model" in record.message]
        assert len(warned) == 1 and "isn't loaded" in warned[0]
        assert engine.info.kv_bytes == built(files).info.kv_bytes


def test_drafters_that_are_not_there_are_refused(files: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="no model here has heads for 'mtp' yet"):
        built(files, "", {"speculative.drafters": ("ngram", "mtp")})
    with pytest.raises(ConfigError, match="there is no 'eagle', only forced, ngram, model, recall, mtp"):
        built(files, "", {"speculative.drafters": ("eagle",)})


def test_every_refusal_names_the_draft_model(files: dict[str, Path], tmp_path: Path) -> None:
    """The served model's own refusals read alike: which of the two is meant must be plain."""
    broken, cut, encoder = tmp_path / "broken.gguf", tmp_path / "cut.gguf", tmp_path / "folder"
    broken.write_bytes(b"GGUF nothing else")
    cut.write_bytes(files["small"].read_bytes()[:-4096])
    encoder.mkdir()
    for bad in (broken, cut, encoder, files["wider"], files["other"], tmp_path / "nothing.gguf", "no-such-model"):
        settings = config(files, "", {"speculative.draft_model": str(bad)})
        with pytest.raises(UserFault) as refused:
            build_engine(str(files["large"]), "m", settings.for_engine(), lambda _: None, lambda _: None)
        assert refused.value.message.startswith(f"--draft-model {bad}: "), refused.value.message
        assert len(refused.value.message) > len(f"--draft-model {bad}: ") + 10


def test_memory_that_it_does_not_get_is_said_to_be_its_own(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("imp_server.engine.drafting.drafters.ModelDrafter", full)
    with pytest.raises(HostOutOfMemory, match=r"^--draft-model .*small.gguf: there isn't enough memory for it"):
        built(files, "small")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_model_as_its_own_draft_costs_next_to_nothing() -> None:
    """Its forwards cost what they save: the gate sees that. In CPU time, which other load doesn't change."""
    path = str(smollm2())
    prompts = [np.random.default_rng(seed).integers(100, 4000, 60).tolist() for seed in range(3)]

    async def body(settings: Settings) -> tuple[list[list[int]], float, dict[str, float]]:
        config = Config.of({"speculative.ngram": False, "cpu.threads": 1, **settings})
        build = functools.partial(build_engine, path, "m", config.for_engine())
        engine = InlineEngine(build)
        await engine.start()
        try:
            ids: list[list[int]] = []
            began = time.process_time()
            for seed, prompt in enumerate(prompts):
                sampling = SamplingParams(temperature=0.7 * (seed % 2), seed=seed)
                (answer,) = await ask(engine, request(engine, prompt, 96, sampling=sampling))
                assert answer.finish
                ids.append(answer.ids)
            return ids, time.process_time() - began, dict((await engine.stats())[0])
        finally:
            await engine.stop()

    plain, plain_s, _ = asyncio.run(body({}))
    drafted, drafted_s, counters = asyncio.run(body({"speculative.draft_model": path}))
    assert drafted == plain
    assert counters['spec_declined_total{reason="cost"}'] > 0
    assert drafted_s < plain_s / 0.97 + 0.5, "but for a part of the second that a start may lose"
