"""A kept prefix cache under kill -9: what was saved is found again, what was half written is computed again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from imp_server.backends import choose
from imp_server.core import EngineCrashed
from imp_server.engine.client.process import ProcessEngine

from tests.engine.tiny_engine import Answer, ask, request
from tests.faults.test_process import IDS, model, run, running, until  # noqa: F401  (a fixture)

CPU = {"engine__backend": "cpu", "engine__warmup": False}
pytestmark = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built: far too slow")


async def saved_blocks(engine: ProcessEngine) -> float:
    counters, _ = await engine.stats()
    return counters["kv_host_spill_blocks"]


async def wait_until_saved(engine: ProcessEngine, n_blocks: int) -> None:
    for _ in range(500):
        if await saved_blocks(engine) >= n_blocks:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it was never saved")


def n_cached(answer: Answer) -> int:
    assert answer.finish
    return answer.finish.usage.cached_tokens


def test_a_killed_engine_comes_back_warm(model: Path, tmp_path: Path) -> None:  # noqa: F811
    async def body() -> None:
        async with running(model, prefix_cache__path=str(tmp_path / "kept"), **CPU) as engine:
            (first,) = await ask(engine, request(engine, IDS[:200], 20))
            await wait_until_saved(engine, 13)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.state == "restarting")
            await until(lambda: engine.state == "ready")
            (again,) = await ask(engine, request(engine, IDS[:200], 20))
            assert (again.ids, n_cached(again)) == (first.ids, 199)
            counters, _ = await engine.stats()
            assert counters["kv_host_spill_faults_total"] == counters["integrity_faults_total"] == 0

    run(body)


@pytest.mark.parametrize(
    "delay_ms", [0, pytest.param(10, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.slow)]
)
def test_killed_at_any_moment_no_answer_changes(model: Path, tmp_path: Path, delay_ms: int) -> None:  # noqa: F811
    """A small pool, so blocks go down and come back all the time, also at the moment of the kill."""
    kept = {"prefix_cache__path": str(tmp_path / "kept"), "kv_cache__max_blocks": 24, "engine__crash_limit": 100, **CPU}
    prompts = [IDS[i * 50 : i * 50 + 150] for i in range(6)]

    async def body() -> None:
        async with running(model, prefix_cache__enabled=False, **CPU) as plain:
            expected = [(await ask(plain, request(plain, prompt, 6)))[0].ids for prompt in prompts]
        async with running(model, **kept) as engine:
            for _ in range(2):
                for prompt, ids in zip(prompts, expected, strict=True):
                    assert (await ask(engine, request(engine, prompt, 6)))[0].ids == ids
                work = [asyncio.ensure_future(ask(engine, request(engine, prompt, 60))) for prompt in prompts]
                await asyncio.sleep(delay_ms / 1e3)
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
                ended = await asyncio.gather(*work, return_exceptions=True)
                assert all(isinstance(each, EngineCrashed | list) for each in ended)
                await until(lambda: engine.state == "ready")
            answers = [(await ask(engine, request(engine, prompt, 6)))[0] for prompt in prompts]
            assert [answer.ids for answer in answers] == expected
            assert sum(map(n_cached, answers)) > 500, "most was saved before"

    run(body)


def test_two_servers_on_one_folder(model: Path, tmp_path: Path) -> None:  # noqa: F811
    """The second says so and runs without; both answer the same."""

    async def body() -> None:
        kept = {"prefix_cache__path": str(tmp_path / "kept"), **CPU}
        async with running(model, **kept) as first, running(model, **kept) as second:
            answers = [(await ask(engine, request(engine, IDS[:100], 10)))[0] for engine in (first, second)]
            assert answers[0].ids == answers[1].ids
            assert "kv_host_spill_blocks" in (await first.stats())[0]
            assert "kv_host_spill_blocks" not in (await second.stats())[0]
            assert len(list((tmp_path / "kept").iterdir())) == 1

    run(body)
