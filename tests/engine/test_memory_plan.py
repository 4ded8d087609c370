"""How much memory keys and values get, and what is said where that is too little."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from imp_server.backends.base import BackendInfo
from imp_server.config import Config
from imp_server.core import CapacityExceeded, ModelFileMissing
from imp_server.engine import build
from imp_server.engine.build import build_engine, plan_memory

from tests.backends.array_source import tiny
from tests.models.tiny_gguf import write_tiny_llama


def n_blocks(model: Path, **more: Any) -> int:
    config = Config.of({"engine.backend": "reference"} | {k.replace("__", "."): v for k, v in more.items()})
    built = build_engine(str(model), "m", config.for_engine(), lambda message: None, lambda message: None)
    built.loop.close()
    return sum(built.info.n_blocks)


@pytest.mark.parametrize("too_little", [{"kv_cache__max_blocks": 1}, {"kv_cache__size_mib": 1}])
def test_the_memory_that_a_refusal_names_is_enough(tmp_path: Path, too_little: dict[str, int]) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=2048)
    wanted = {"kv_cache__min_tokens": 17 if "kv_cache__max_blocks" in too_little else 40_000}
    with pytest.raises(CapacityExceeded) as refused:
        n_blocks(model, **too_little, **wanted)
    said = re.search(r"raise kv_cache.size_mib \((\d+) MiB hold them\)", str(refused.value))
    assert said
    mib = int(said[1])
    assert 16 * n_blocks(model, kv_cache__size_mib=mib, **wanted) >= wanted["kv_cache__min_tokens"]


def on_a_device(left_mib: int, drafter_block: int = 0, **knobs: int) -> int:
    """Blocks of 1 MiB each, for 8 rows of 16,000 ids."""
    info = BackendInfo("cuda", "", "bf16", has_device_memory=True, kv_memory_bytes=left_mib << 20)
    backend: Any = SimpleNamespace(info=info, block_bytes=lambda dtype: (1 << 20,))
    config = Config.of({f"kv_cache.{name}": value for name, value in knobs.items()}).for_engine()
    return plan_memory(backend, tiny(), config, 8, 16_000, drafter_block).n_blocks[0]


def test_a_devices_memory_is_what_its_backend_says_is_left() -> None:
    assert on_a_device(700) == 700
    assert on_a_device(90_000) == 8 * 1000, "no more than rows can hold"
    assert on_a_device(700, 1 << 20) == 350, "beside a draft model's"
    assert on_a_device(700, size_mib=500) == 500
    with pytest.raises(CapacityExceeded, match=r"asks for 900 MiB .* 700 MiB of the device are left"):
        on_a_device(700, size_mib=900)


def test_whoever_opens_the_model_knows_the_context_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def opening(path: str, served_context: int) -> NoReturn:
        told.append((path, served_context))
        raise ModelFileMissing("enough")

    monkeypatch.setattr(build, "open_with_tokenizer", opening)
    with pytest.raises(ModelFileMissing):
        build_engine("x", "m", Config.of({"model.max_seq_len": 77}).for_engine(), lambda _: None, lambda _: None)
    assert told == [("x", 77)]
