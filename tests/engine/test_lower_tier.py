"""The default model over its tier: cold, warm, evicted and restarted give the same ids and logprobs."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.backends import choose, make_backend
from imp_server.backends.base import KvSpec
from imp_server.backends.options import BackendOptions
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.config import Config
from imp_server.config.running import CpuSettings
from imp_server.core import ConfigError, SamplingParams
from imp_server.engine import lower_tier as module
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.fingerprint import fingerprint, model_name
from imp_server.engine.lower_tier import lower_tier
from imp_server.models.opening import open_model
from imp_server.schedule.tiers.file import FileTier
from imp_server.schedule.tiers.host import HostTier

from tests.backends.array_source import ArraySource, tiny
from tests.engine.tiny_engine import Answer, ask, request
from tests.real_model import smollm2

native = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built: far too slow")
PROMPTS = [np.random.default_rng(seed).integers(100, 4000, 90).tolist() for seed in range(5)]


def with_model(config: Config, test: Callable[[InlineEngine], Awaitable[None]]) -> None:
    async def body() -> None:
        engine = InlineEngine(
            functools.partial(build_engine, str(smollm2()), "smollm2", config.for_engine()), check_each_step=True
        )
        await engine.start()
        try:
            await test(engine)
        finally:
            await engine.stop()

    asyncio.run(body())


async def answers(engine: InlineEngine) -> list[Answer]:
    def wanted(number: int) -> Any:
        sampling = SamplingParams(temperature=0.7 * (number % 2), seed=number)
        return request(engine, PROMPTS[number], 8, sampling=sampling, logprobs=3)

    return [(await ask(engine, wanted(number)))[0] for number in range(5)]


def cached(found: list[Answer]) -> list[int]:
    return [answer.finish.usage.cached_tokens for answer in found if answer.finish]


@native
@pytest.mark.timeout(300)
def test_cold_warm_evicted_and_restarted_are_the_same(tmp_path: Path) -> None:
    runs: list[list[Answer]] = []
    counters: list[dict[str, float]] = []

    async def once(engine: InlineEngine) -> None:
        runs.append(await answers(engine))
        counters.append(dict((await engine.stats())[0]))

    async def twice(engine: InlineEngine) -> None:
        await once(engine)
        await once(engine)

    small = {"kv_cache.max_blocks": 10, "scheduler.max_rows": 2, "engine.warmup": False}
    with_model(Config.of({"prefix_cache.enabled": False, "engine.warmup": False}), once)
    with_model(Config.of({**small, "prefix_cache.path": str(tmp_path / "kept")}), twice)
    with_model(Config.of({"engine.warmup": False, "prefix_cache.path": str(tmp_path / "kept")}), once)
    os.environ["IMP_HOME"], before = str(tmp_path / "home"), os.environ.get("IMP_HOME", "")
    try:
        with_model(Config.of({**small, "kv_cache.host_spill_mib": 64, "cpu.pack_cache": False}), twice)
    finally:
        os.environ["IMP_HOME"] = before
    expected = [(answer.ids, answer.logprobs) for answer in runs[0]]
    assert all([(answer.ids, answer.logprobs) for answer in run] == expected for run in runs)
    assert [cached(run) for run in runs] == [[0] * 5, [0] * 5, [89] * 5, [89] * 5, [0] * 5, [89] * 5]
    for index in (2, 5):
        assert counters[index]["prefix_cache_restored_tokens_total"] > 300, "most came back from the file"
    assert all(each["integrity_faults_total"] == 0 for each in counters)
    assert all(each.get("kv_host_spill_faults_total", 0) == 0 for each in counters)
    assert list((tmp_path / "home" / "spill").iterdir()) == []


@native
def test_the_fingerprint_knows_model_kernel_and_kv_type(tmp_path: Path) -> None:
    copy = tmp_path / "model.gguf"
    copy.write_bytes(smollm2().read_bytes())

    def mark(options: dict[str, Any], dtype: str = "bf16") -> bytes:
        source = open_model(str(copy))
        backend = make_backend("cpu", source, BackendOptions(CpuSettings(pack_cache=False, **options)))
        try:
            return fingerprint(source, backend, KvSpec((8,), dtype))
        finally:
            backend.close()

    marks = [mark({}), mark({}, "int8"), mark({"isa": "portable"})]
    assert mark({"threads": 1}) == marks[0]
    with copy.open("r+b") as file:  # one weight, with the file's times put back
        times = copy.stat()
        file.seek(-100, os.SEEK_END)
        file.write(b"\x55")
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    marks.append(mark({}))
    assert len(set(marks)) == len(marks)
    assert model_name(open_model(str(copy))) == model_name(open_model(str(copy)))


class OnDevice(ReferenceBackend):
    def __init__(self) -> None:
        super().__init__(ArraySource(tiny()))
        from dataclasses import replace

        self.info = replace(self.info, has_device_memory=True)


def test_which_tier_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "imp_home", lambda: tmp_path)
    monkeypatch.setattr(module, "fingerprint", lambda *_: b"f" * 32)
    monkeypatch.setattr(module, "model_name", lambda *_: b"m" * 32)
    source, backend = ArraySource(tiny()), ReferenceBackend(ArraySource(tiny()))

    def chosen(backend: ReferenceBackend = backend, **knobs: object) -> Any:
        config = Config.of({name.replace("__", "."): value for name, value in knobs.items()})
        below = lower_tier(config.for_engine(), source, backend, KvSpec((8,), "f32"))
        return below and below.tier

    kept: dict[str, Any] = {"prefix_cache__path": str(tmp_path / "kept")}
    assert chosen() is None
    assert chosen(**kept, prefix_cache__enabled=False) is None
    spill = chosen(kv_cache__host_spill_mib=1)
    assert isinstance(spill, FileTier) and not spill.persists
    assert isinstance(chosen(OnDevice(), kv_cache__host_spill_mib=1), HostTier)
    first = chosen(**kept)
    assert isinstance(first, FileTier) and first.persists
    assert chosen(**kept) is None, "another server has it, and no spill is configured"
    second = chosen(**kept, kv_cache__host_spill_mib=1)
    assert isinstance(second, FileTier) and not second.persists
    assert any("another server" in line for line in caplog.messages)
    (tmp_path / "a file").write_text("")
    with pytest.raises(ConfigError, match="no such home folder"):
        chosen(prefix_cache__path="~nobody-of-this-name/kept")
    with pytest.raises(ConfigError, match="names a folder"):
        chosen(prefix_cache__path=str(tmp_path / "a file"))
