"""A header that lies is refused in one line, or is a model that fits its tensors: whatever a single value becomes."""

from __future__ import annotations

import lzma
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.core import UserFault
from imp_server.models import opening
from imp_server.models.opening import families_by_model_type, open_model
from imp_server.weights.gguf import GgufFile

from tests.models.family_cases import CASES
from tests.models.oracle_files import file_of
from tests.models.test_real_configs import PUBLISHED, case_of, described

VALUES: tuple[Any, ...] = (
    0, -1, 1, 3, 2**31, 2**63, -(2**63), 0.0, -1.5, 1e38, float("nan"), float("inf"), True, False, "", "x", [], [0],
    [1, 2], [1e9] * 3, [None], {}, {"a": 1},
)  # fmt: skip
MOST_BYTES = 64 << 20
MOST_SECONDS = 10.0  # of 45,000 tensors' names, while every allocation is traced, 3


def check(open_it: Callable[[], Any], what: str) -> None:
    began = time.process_time()
    tracemalloc.reset_peak()
    try:
        open_it()
    except UserFault as fault:
        told = str(fault)
        assert told and "\n" not in told and len(told) < 500, what
    assert time.process_time() - began < MOST_SECONDS, what
    assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, what


def lies(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, true in config.items():
        for value in (None, *VALUES):
            yield f"{key} = {value!r}", {**config, key: value}
        for told, lying in lies(true) if isinstance(true, dict) else ():
            yield f"{key}.{told}", {**config, key: lying}


@pytest.fixture
def traced() -> Any:
    tracemalloc.start()
    yield
    tracemalloc.stop()


class Lying(GgufFile):
    """A file whose header has another value, or lacks the key; no weight of it may be read."""

    def __init__(self, path: Path, /, key: str, value: Any) -> None:
        super().__init__(path)
        if value is None:
            self.metadata.pop(key)  # type: ignore[attr-defined]
        else:
            self.metadata[key] = np.array(value) if isinstance(value, list) else value  # type: ignore[index]

    def data(self, name: str) -> Any:
        assert name.startswith("rope_"), f"{name} is read before the model is checked"
        return super().data(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_gguf])
def test_a_gguf_whose_header_lies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced: Any) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(lzma.decompress(file_of(name).read_bytes()))
    architecture = GgufFile(path).metadata["general.architecture"]
    keys = [key for key in GgufFile(path).metadata if key.startswith(f"{architecture}.")]
    for key in (*keys, "general.architecture"):
        for value in (None, *VALUES):
            with monkeypatch.context() as patch:
                patch.setattr(opening, "GgufFile", partial(Lying, key=key, value=value))
                check(partial(open_model, path), f"{name}: {key} = {value!r}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_that_lies(name: str, traced: Any) -> None:
    config = {**PUBLISHED[name], **PUBLISHED[name].get("text_config", {})}
    case = case_of(config)
    for told, lying in lies({key: value for key, value in config.items() if key not in ("model_type", "text_config")}):
        check(partial(described, {"model_type": config["model_type"], **lying}, case), f"{name}: {told}")


def test_an_unknown_model_type_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "klingon"}')
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(UserFault, match="the model type 'klingon' isn't supported") as caught:
        open_model(tmp_path)
    assert families_by_model_type().keys() and "\n" not in str(caught.value)
