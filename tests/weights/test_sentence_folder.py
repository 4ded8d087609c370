"""A folder for sentence-transformers says how vectors are made of positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.opening import open_model

from tests.models.tiny_hf import write_tiny_folder

MEAN, LAST = "pooling_mode_mean_tokens", "pooling_mode_lasttoken"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("sentences"), hidden_size=16, num_attention_heads=2)


def write(folder: Path, pooling: Any, modules: Any = None) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").unlink(missing_ok=True)
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [
        {"idx": i, "name": str(i), "path": "", "type": f"sentence_transformers.models.{k}"} for i, k in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        ({"word_embedding_dimension": 16, MEAN: True, LAST: False}, "mean"),
        ({MEAN: False, LAST: True, "include_prompt": True}, "none"),
        ({"pooling_mode": "mean", "embedding_dimension": 16}, "mean"),
        ({"pooling_mode": "lasttoken"}, "none"),
        ({"word_embedding_dimension": 16}, "none"),
    ],
)
def test_the_mean_or_the_last(tiny: Path, pooling: Any, wanted: str) -> None:
    write(tiny, pooling, modules("Transformer", "Pooling", "Normalize"))
    assert open_model(tiny).architecture.pooling == wanted


@pytest.mark.parametrize(
    ("pooling", "told"),
    [
        ({"pooling_mode_cls_token": True}, "pooling_mode_cls_token in 1_Pooling/config.json isn't supported"),
        ({MEAN: True, "pooling_mode_max_tokens": True}, f"{MEAN}, pooling_mode_max_tokens in 1_Pooling"),
        ({"pooling_mode": "cls"}, "'pooling_mode': 'cls' in 1_Pooling"),
        ({MEAN: True, "include_prompt": False}, "'include_prompt': false in 1_Pooling"),
    ],
)
def test_other_ways_are_refused_by_name(tiny: Path, pooling: Any, told: str) -> None:
    write(tiny, pooling)
    with pytest.raises(UnsupportedModel, match=told):
        open_model(tiny)


def test_further_modules_are_refused_by_name(tiny: Path) -> None:
    write(tiny, {MEAN: True}, modules("Transformer", "Pooling", "Dense"))
    with pytest.raises(UnsupportedModel, match=r"the module 'Dense' in modules\.json isn't supported"):
        open_model(tiny)


@pytest.mark.parametrize("broken", [{"type": 1}, 3, [{"kind": "x"}], [1]])
def test_modules_that_cant_be_read(tiny: Path, broken: Any) -> None:
    write(tiny, {MEAN: True}, broken)
    with pytest.raises(InvalidModel, match=r"modules\.json isn't a list of modules"):
        open_model(tiny)
