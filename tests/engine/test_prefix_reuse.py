"""Cold, warm, evicted and without a cache: the same ids for eight clients; and usage that says what was reused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.core import AdapterUse, SamplingParams, pack_ids
from imp_server.decode.ngram import NgramDrafter
from imp_server.engine.client.inline import InlineEngine
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.tiers.host import HostTier

from tests.backends.array_source import BASE, altered, tiny
from tests.engine.tiny_engine import Tiny, ask, request, with_engine

SHARED = np.random.default_rng(1).integers(0, 94, 70).tolist()


async def eight(engine: InlineEngine) -> list[list[int]]:
    def wanted(number: int) -> Any:
        sampling = SamplingParams(temperature=0.5 * (number % 2), seed=number)
        return request(engine, [*SHARED[: 70 - number], number, number], 24, sampling=sampling)

    answers = await asyncio.gather(*(ask(engine, wanted(number)) for number in range(8)))
    return [answer.ids for (answer,) in answers]


@pytest.mark.parametrize("n_blocks", [24, 96])
def test_cold_warm_evicted_and_off_are_the_same(n_blocks: int) -> None:
    runs: list[list[list[int]]] = []

    async def body(engine: InlineEngine, _: Tiny) -> None:
        runs.extend([await eight(engine), await eight(engine)])

    with_engine(body, n_blocks=n_blocks)
    with_engine(body, n_blocks=n_blocks, make_index=PrefixCache)
    with_engine(body, n_blocks=n_blocks, make_index=PrefixCache, drafters=[NgramDrafter()])
    with_engine(body, n_blocks=n_blocks, tier=HostTier(1 << 26))
    with_engine(body, n_blocks=n_blocks, tier=HostTier(1 << 17), drafters=[NgramDrafter()])
    assert all(run == runs[0] for run in runs)


def test_usage_says_what_had_to_go() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        n_told = 0
        for seed in range(4):
            prompt = np.random.default_rng(seed).integers(0, 94, 70).tolist()
            (answer,) = await ask(engine, request(engine, prompt, 4))
            assert answer.finish
            n_told += answer.finish.usage.evicted_tokens
            assert (answer.finish.usage.evicted_tokens > 0) == (seed > 0), "five blocks each, in a pool of eight"
        counters, _rows = await engine.stats()
        assert counters["prefix_cache_evicted_tokens_total"] == n_told

    with_engine(body, make_index=PrefixCache, n_blocks=8, context=128)


def test_usage_says_what_was_read_and_what_was_stored() -> None:
    async def body(engine: InlineEngine, setup: Tiny) -> None:
        usages = []
        for prompt in (SHARED, SHARED, [*SHARED[:40], *SHARED[:20]]):
            (answer,) = await ask(engine, request(engine, prompt, 4))
            assert answer.finish
            usages.append((answer.finish.usage.cached_tokens, answer.finish.usage.cache_write_tokens))
        kept = setup.make_index is not None
        assert usages == ([(0, 70), (69, 1), (40, 20)] if kept else [(0, 0)] * 3)

    with_engine(body, make_index=PrefixCache)
    with_engine(body)


def test_embeddings_and_scores_leave_nothing_in_the_cache() -> None:
    """Nobody continues them, so what they would store only pushes conversations out."""

    async def body(engine: InlineEngine, _: Tiny) -> None:
        tasks: list[tuple[str, dict[str, Any]]] = [("embed", {}), ("score", {"score_ids": pack_ids([4, 90])})]
        for task, more in tasks:
            for _twice in range(2):
                (answer,) = await ask(engine, request(engine, SHARED, task=task, **more))
                assert answer.finish and answer.finish.usage.cached_tokens == 0
        (answer,) = await ask(engine, request(engine, SHARED, 4))
        assert answer.finish and answer.finish.usage.cached_tokens == 0
        (answer,) = await ask(engine, request(engine, SHARED, 4))
        assert answer.finish and answer.finish.usage.cached_tokens == len(SHARED) - 1

    with_engine(body, n_blocks=96, make_index=PrefixCache)


def uses(name: str, scale: float = 1.0) -> tuple[AdapterUse, ...]:
    return (AdapterUse(name, scale),) if name else ()


def with_one_slot(backend: Any) -> Any:
    assert backend.add_adapter({}) == 1
    backend.load_adapter = lambda path: 1
    backend.unload_adapter = lambda slot: None
    return backend


def test_an_adapter_never_finds_what_another_one_in_its_slot_computed() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        found = []
        for name in ("", "a", "a", "b", "a"):
            if name:
                await engine.load_adapter(name, f"/{name}")
            (answer,) = await ask(engine, request(engine, SHARED, 4, adapters=uses(name)))
            assert answer.finish
            found.append(answer.finish.usage.cached_tokens)
            if name == "b":
                await engine.unload_adapter("b")
                await engine.unload_adapter("a")
        assert found == [0, 0, 69, 0, 0]

    with_engine(body, make_index=PrefixCache, wrap=with_one_slot)


def test_other_scales_share_nothing(tmp_path: Path) -> None:
    """Neither among each other nor with the model itself; a scale of 0 is the model itself."""
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(b"weights")

    async def body(engine: InlineEngine, _: Tiny) -> None:
        await engine.load_adapter("a", str(path))
        found = []
        for adapters in (
            None,
            uses("a"),
            uses("a", 0.5),
            uses("a", 0.0),
            uses("a"),
            (*uses("a", 2.0), *uses("a", 0.5)),
        ):
            (answer,) = await ask(engine, request(engine, SHARED, 4, adapters=adapters))
            assert answer.finish
            found.append(answer.finish.usage.cached_tokens)
        assert found == [0, 0, 0, 69, 69, 69]

    with_engine(body, make_index=PrefixCache, wrap=with_one_slot)


def test_an_adapter_is_known_by_its_contents(tmp_path: Path) -> None:
    """Under another name and path it finds what it computed; with other contents at the same path it doesn't."""
    first, copy = tmp_path / "first", tmp_path / "copy"
    for folder in (first, copy):
        folder.mkdir()
        (folder / "adapter_config.json").write_bytes(b"{}")
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        (folder / "README.md").write_text(folder.name)
    weights = copy / "adapter_model.safetensors"

    async def body(engine: InlineEngine, _: Tiny) -> None:
        found = []
        for name, path, changed in (
            ("a", first, ""),
            ("b", copy, ""),
            ("b again", weights, ""),
            ("c", first, "adapter_model.safetensors"),
            ("d", weights, "adapter_config.json"),
        ):
            if changed:
                (path if path.is_dir() else path.parent).joinpath(changed).write_bytes(b'{"lora_alpha": 3}')
            await engine.load_adapter(name, str(path))
            (answer,) = await ask(engine, request(engine, SHARED, 4, adapters=uses(name)))
            assert answer.finish
            found.append(answer.finish.usage.cached_tokens)
            await engine.unload_adapter(name)
        assert found == [0, 69, 69, 0, 0]

    with_engine(body, make_index=PrefixCache, wrap=with_one_slot)


def test_a_swapped_row_goes_on_bit_by_bit_the_same() -> None:
    """Rows that outgrow memory step back, the youngest first; logprobs show every bit that a logit has."""
    runs: list[list[Any]] = []
    counters: list[dict[str, float]] = []

    async def body(engine: InlineEngine, _: Tiny) -> None:
        wanted = [request(engine, SHARED[i : i + 30], 50, logprobs=3) for i in range(4)]
        answers = await asyncio.gather(*(ask(engine, each) for each in wanted))
        runs.append([(answer.ids, answer.logprobs) for (answer,) in answers])
        counters.append(dict((await engine.stats())[0]))

    with_engine(body)
    with_engine(body, n_blocks=12)
    with_engine(body, n_blocks=12, tier=HostTier(1 << 26))
    assert runs[1] == runs[2] == runs[0]
    assert counters[0]["preemptions_total"] == 0 < counters[1]["preemptions_total"]
    assert counters[2]["resumed_tokens_total"] > 0, "swapped"
    assert counters[2]["recomputed_tokens_total"] <= counters[2]["preemptions_total"], "at most the last token"
    assert counters[1]["recomputed_tokens_total"] > counters[2]["recomputed_tokens_total"], "re-queued"


def test_only_generations_are_stored() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        for task in ("embed", "score", "rank"):
            more: dict[str, Any] = {"score_ids": pack_ids([3, 4])} if task == "score" else {}
            for start in range(8):
                await ask(engine, request(engine, SHARED[start : start + 60], task=task, **more))
        await ask(engine, request(engine, SHARED[:60], 2, prompt_logprobs=1))
        counters, _rows = await engine.stats()
        assert counters["prefix_cache_nodes"] == counters["kv_host_spill_stored_total"] == 0

    with_engine(body, n_blocks=16, tier=HostTier(1 << 26))


def test_a_prompt_that_fills_the_whole_pool_can_come_again() -> None:
    """Its last block is known in part: without a block to copy that one into it is computed again."""

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        prompt = np.random.default_rng(6).integers(0, 94, 84).tolist()
        first, again = [(await ask(engine, request(engine, prompt, 10)))[0] for _ in range(2)]
        assert first.ids == again.ids and again.finish and again.finish.usage.cached_tokens == 80
        assert setup.loop and not setup.loop.scheduler.n_preemptions

    with_engine(body, make_index=PrefixCache, n_blocks=6, context=96)


def test_a_window_slides_over_more_text_than_the_pool_holds() -> None:
    """The blocks behind it are kept as long as nobody needs them, though what continues them is in use."""
    prompt = np.random.default_rng(6).integers(0, 94, 184).tolist()
    runs: list[list[int]] = []

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        for _ in range(2):
            (answer,) = await ask(engine, request(engine, prompt, 30))
            runs.append(answer.ids)
        assert setup.loop and not setup.loop.scheduler.n_preemptions
        index = setup.loop.scheduler.index
        if index.keeps:
            assert answer.finish and answer.finish.usage.cached_tokens > 160
            await ask(engine, request(engine, prompt[::-1], 30))
            assert index.counters()["prefix_cache_nodes"] < 20, "nodes that hold nothing go with the others"

    window = {"architecture": tiny(altered(BASE, window=20)), "n_blocks": 6}
    with_engine(body, **window)
    with_engine(body, make_index=PrefixCache, **window)
    assert all(run == runs[0] for run in runs)
