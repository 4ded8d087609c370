"""Folders of a model: shards, their index, what config.json says, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel, UserFault
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.header import read_header
from imp_server.weights.hf_folder import HfFolder
from safetensors.torch import save_file

from tests.weights.packing import folder


def sharded(path: Path) -> Path:
    path.mkdir()
    save_file({"a": torch.ones(2)}, path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, path / "model-00002-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def test_shards(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m")
    assert set(Checkpoint(HfFolder(path)).names()) == {"a", "b"}
    (path / "model.safetensors.index.json").unlink()
    assert set(Checkpoint(HfFolder(path)).names()) == {"a", "b"}


def index(path: Path, **weight_map: Any) -> Path:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


FOLDER_FAULTS: dict[str, tuple[Callable[[Path], object], type[UserFault], str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), ModelFileMissing, r"config\.json"),
    "config": (lambda p: (p / "config.json").write_text("{"), InvalidModel, r"config\.json isn't JSON"),
    "no type": (lambda p: (p / "config.json").write_text("{}"), InvalidModel, "model_type"),
    "shard gone": (
        lambda p: (p / "model-00002-of-00002.safetensors").unlink(),
        ModelFileMissing,
        "model-00002-of-00002",
    ),
    "escape": (lambda p: index(p, a="../a.safetensors"), InvalidModel, r"\.\./a"),
    "pickle": (lambda p: index(p, a="a.bin"), InvalidModel, r"a\.bin"),
    "promise": (lambda p: index(p, z="model-00001-of-00002.safetensors"), InvalidModel, "'z'"),
    "map": (lambda p: index(p, a=1), InvalidModel, "weight_map"),
    "twice": (
        lambda p: save_file({"a": torch.ones(2)}, p / "model-00002-of-00002.safetensors"),
        InvalidModel,
        "'a' is in",
    ),
    "big": (lambda p: (p / "config.json").write_text("{" + " " * (65 << 20)), InvalidModel, "larger than"),
}


@pytest.mark.parametrize("name", FOLDER_FAULTS)
def test_folder_faults(name: str, tmp_path: Path) -> None:
    spoil, error, words = FOLDER_FAULTS[name]
    path = sharded(tmp_path / "m")
    spoil(path)
    with pytest.raises(error, match=words):
        read_header(path) if name != "no config" else HfFolder(path)


def test_a_folder_of_pickles(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedModel, match="the weights are missing"):
        read_header(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedModel, match="convert pickled weights"):
        read_header(tmp_path)


def test_header(tmp_path: Path) -> None:
    path = folder(tmp_path / "name", {"x.layers.0.w": torch.ones(2, 2)}, max_position_embeddings=99)
    (path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]})
    )
    (path / "generation_config.json").write_text('{"temperature": 0.3, "eos_token_id": [1, 2]}')
    header = read_header(path)
    assert (header.name, header.architecture, header.context_length) == ("name", "llama", 99)
    assert header.chat_templates == {"default": "A", "tool_use": "B"}
    assert header.generation["temperature"] == 0.3 and header.quantisation == "F32"
    (path / "chat_template.jinja").write_text("C")
    assert read_header(path).chat_template == "C"


def test_text_config_describes_a_model_of_several_parts(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"a": torch.ones(1)}, text_config={"model_type": "gemma3_text", "hidden_size": 8})
    header = read_header(path)
    assert header.architecture == "gemma3_text" and header.hyperparameters["hidden_size"] == 8
