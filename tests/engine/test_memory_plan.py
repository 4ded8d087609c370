"""How much memory keys and values get, and what is said where that is too little."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from imp_server.config import Config
from imp_server.core import CapacityExceeded
from imp_server.engine.build import build_engine

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
