"""Values of headers that would be divided by, and those that the forward has as constants."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.gguf_rope import rope_of_gguf
from imp_server.models.hyperparameters import Hyperparameters
from imp_server.models.rotation import magnitude


def keys(**values: Any) -> Hyperparameters:
    header: Any = SimpleNamespace(hyperparameters=values, format="checkpoint", architecture="m", path=Path("x"))
    return Hyperparameters(header)


@pytest.mark.parametrize("value", [0, -1, 0.0, "1", True, None])
def test_what_is_divided_by_is_positive(value: Any) -> None:
    with pytest.raises(InvalidModel, match="'scale'"):
        keys(scale=value).positive("scale")
    assert keys(scale=2).positive("scale") == 2.0 and keys().positive("scale", 3.0) == 3.0


def test_a_count_may_be_written_as_a_fraction() -> None:
    """As GGUF files of Gemma 3n have the number of layers that share keys."""
    assert keys(n=15.0).integer("n") == 15
    for value in (1.5, float("inf"), float("nan"), 0.0):
        with pytest.raises(InvalidModel, match="'n'"):
            keys(n=value).integer("n")


def test_constants_are_those_of_the_forward() -> None:
    keys(limit=7.0).only("limit", 7.0)
    keys().only("limit", 7.0)
    with pytest.raises(UnsupportedModel, match=r"'limit' is 8"):
        keys(limit=8).only("limit", 7.0)


@pytest.mark.parametrize("name", ["rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"])
def test_the_whole_factor_of_yarn_under_either_name(name: str) -> None:
    """1.2079 for a context 8 times as long: what the checkpoint says is what cosines are multiplied with."""
    values: dict[str, Any] = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "context_length": 65536,
        "rope.scaling.original_context_length": 8192, name: 1.2079,
    }  # fmt: skip
    file: Any = SimpleNamespace(tensors={})
    rope = rope_of_gguf(keys(**values), file, 64, "neox", 64)
    assert magnitude(rope.scaling) == pytest.approx(1.2079)
    del values[name]
    assert magnitude(rope_of_gguf(keys(**values), file, 64, "neox", 64).scaling) == pytest.approx(1.2079, abs=1e-4)
