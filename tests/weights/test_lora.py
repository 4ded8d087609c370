"""Adapters that don't fit, say what imp doesn't compute, or are broken: one line that names what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel, UserFault
from imp_server.models.adapters import open_adapter
from imp_server.models.opening import open_model
from imp_server.models.source import ModelSource
from imp_server.weights.lora import read_lora
from safetensors.numpy import save_file

from tests.models.tiny_gguf import write_tiny_llama
from tests.models.tiny_hf import write_tiny_folder
from tests.weights.gguf_writer import gguf_bytes

PREFIX = "base_model.model.model.layers.0."
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
F32, Q4_0 = 0, 2


def pair(module: str = "self_attn.q_proj", n_in: int = 48, n_out: int = 48, rank: int = 2) -> dict[str, Any]:
    return {
        f"{PREFIX}{module}.lora_A.weight": np.ones((rank, n_in), np.float32),
        f"{PREFIX}{module}.lora_B.weight": np.ones((n_out, rank), np.float32),
    }


def folder(path: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    save_file(pair() if tensors is None else tensors, path / "adapter_model.safetensors")
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return open_model(write_tiny_folder(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def gguf_source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    path = tmp_path_factory.mktemp("base") / "model.gguf"
    write_tiny_llama(path)
    return open_model(path)


def test_it_is_read(tmp_path: Path, source: ModelSource) -> None:
    """What a newer PEFT says and what doesn't matter is taken in."""
    more: dict[str, Any] = {
        "use_dora": False,
        "modules_to_save": None,
        "some_new_key": None,
        "init_lora_weights": "gaussian",
    }
    adapter = open_adapter(str(folder(tmp_path / "a", **more)), source)
    assert list(adapter) == ["layers.0.q"] and adapter["layers.0.q"].scale == 2.0
    assert adapter["layers.0.q"].a.shape == (2, 48)


@pytest.mark.parametrize("prefix", ["layers.0.", "base_model.model.model.language_model.layers.0."])
def test_names_of_other_classes(tmp_path: Path, source: ModelSource, prefix: str) -> None:
    assert list(open_adapter(str(folder(tmp_path / "a", renamed(prefix))), source)) == ["layers.0.q"]


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"use_rslora": True}, 4 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 1}}, 0.5),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 1, "q_proj": 3}}, 0.5),
        ({"alpha_pattern": {"^self_attn.q_proj": 1, "proj": 1, "layers.1.self_attn.q_proj": 1}}, 2.0),
        ({"r": 7, "rank_pattern": {"^model.layers.0.self_attn.q_proj": 2}}, 2.0),
    ],
)
def test_factors(tmp_path: Path, source: ModelSource, config: dict[str, Any], scale: float) -> None:
    adapter = open_adapter(str(folder(tmp_path / "a", **config)), source)
    assert adapter["layers.0.q"].scale == pytest.approx(scale)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "'peft_type' is 'IA3'"),
        ({"use_dora": True}, "'use_dora': DoRA aren't supported"),
        ({"bias": "all"}, "'bias' is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save'"),
        ({"lora_bias": True}, "'lora_bias'"),
        ({"fan_in_fan_out": True}, "'fan_in_fan_out'"),
        ({"init_lora_weights": "pissa_niter_4"}, "'init_lora_weights' is 'pissa_niter_4'"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "'target_parameters': adapters of experts"),
        ({"layer_replication": [[0, 1]]}, "'layer_replication'"),
        ({"alora_invocation_tokens": [1]}, "aLoRA"),
        ({"a_key_of_tomorrow": 3}, "'a_key_of_tomorrow' isn't supported"),
        ({"r": "two"}, "'r' is 'two', not a number"),
        ({"lora_alpha": None}, "'lora_alpha' is None"),
        ({"lora_alpha": 10**400}, "not a number up to 1073741824"),
        ({"lora_alpha": -1e39}, "'lora_alpha' is -1e+39"),
        ({"alpha_pattern": {"q_proj": float("nan")}}, "'alpha_pattern.q_proj' is nan"),
        ({"r": 3}, "the rank of 'model.layers.0.self_attn.q_proj' is 3, its tensors have 2"),
        ({"rank_pattern": {"(a+)+$": 2}}, "plain names are read"),
        ({"use_rslora": "yes"}, "'use_rslora' is 'yes'"),
    ],
)
def test_what_a_config_asks_for_in_vain(tmp_path: Path, source: ModelSource, config: Any, words: str) -> None:
    with pytest.raises(UserFault) as caught:
        open_adapter(str(folder(tmp_path / "a", **config)), source)
    assert words in caught.value.message and "\n" not in caught.value.message


def _without(half: str) -> dict[str, Any]:
    return {name: value for name, value in pair().items() if half not in name}


def renamed(prefix: str) -> dict[str, Any]:
    """The pair, of a place that is called otherwise."""
    return {prefix + name.removeprefix(PREFIX): value for name, value in pair().items()}


NAN = pair()
NAN[f"{PREFIX}self_attn.q_proj.lora_B.weight"] = np.full((48, 2), np.nan, np.float32)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (_without("lora_A"), "its other half (lora_a) is missing"),
        (_without("lora_B"), "its other half (lora_b) is missing"),
        (pair(n_in=47), "is (2, 47), for this model it has to be (2, 48)"),
        (pair(n_out=24), "is (24, 2), for this model it has to be (48, 2)"),
        (pair("self_attn.r_proj"), "the model has no matrix 'model.layers.0.self_attn.r_proj.weight'"),
        (pair("input_layernorm"), "adapters of 'model.layers.0.input_layernorm.weight' aren't supported"),
        ({"base_model.model.lm_head.lora_A.weight": np.ones((2, 48), np.float32),
          "base_model.model.lm_head.lora_B.weight": np.ones((64, 2), np.float32)}, "lm_head.weight' aren't supported"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": np.ones((2, 48), np.float32)}, "no part of a LoRA"),
        ({f"{PREFIX}self_attn.q_proj.lora_magnitude_vector.weight": np.ones(48, np.float32)}, "no part of a LoRA"),
        ({"base_model.model.lm_head.weight": np.ones((64, 48), np.float32)}, "no part of a LoRA adapter"),
        (pair() | {f"{PREFIX}self_attn.q_proj.lora_B.weight": np.ones((48, 3), np.float32)}, "their ranks differ"),
        ({name: value.astype(np.int8) for name, value in pair().items()}, "is I8"),
        ({name: value[None] for name, value in pair().items()}, "adapters of experts aren't supported"),
        (NAN, "has numbers that aren't finite"),
        (pair() | renamed("layers.0."), "are for the same matrix of the model"),
        (renamed("base_model.model.vision_tower.encoder.layers.0."), "the model has no matrix 'vision_tower.encoder."),
        ({}, "the adapter has no tensors"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(tmp_path: Path, source: ModelSource, tensors: Any, words: str) -> None:
    with pytest.raises(UserFault) as caught:
        open_adapter(str(folder(tmp_path / "a", tensors)), source)
    assert words in caught.value.message and "\n" not in caught.value.message


def test_nothing_large_is_made_before_it_fits(tmp_path: Path, source: ModelSource) -> None:
    """The last part doesn't fit; the first, which does, is never read."""
    tensors = pair() | pair("mlp.down_proj", 64, 47)
    path = folder(tmp_path / "a", tensors)
    file = read_lora(path)
    assert {part.matrix for part in file.parts} == {
        "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight",
    }  # fmt: skip
    with pytest.raises(InvalidModel, match="has to be"):
        open_adapter(str(path), source)


def gguf(path: Path, tensors: Any = None, **meta: Any) -> Path:
    keys = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 4.0,
    }
    keys |= {name.replace("__", "."): value for name, value in meta.items()}
    keys = {name: value for name, value in keys.items() if value is not None}
    ones: Any = {
        "blk.0.attn_q.weight.lora_a": (F32, (2, 64), bytes(2 * 64 * 4)),
        "blk.0.attn_q.weight.lora_b": (F32, (64, 2), bytes(2 * 64 * 4)),
    }
    path.write_bytes(gguf_bytes(keys, ones if tensors is None else tensors))
    return path


def test_a_gguf_file(tmp_path: Path, gguf_source: ModelSource) -> None:
    n = gguf_source.architecture.width
    tensors = {
        "blk.0.attn_q.weight.lora_a": (F32, (2, n), bytes(2 * n * 4)),
        "blk.0.attn_q.weight.lora_b": (F32, (n, 2), bytes(2 * n * 4)),
    }
    path = gguf(tmp_path / "a.gguf", tensors)
    assert open_adapter(str(path), gguf_source)["layers.0.q"].scale == 2.0
    path = gguf(tmp_path / "b.gguf", tensors, adapter__lora__alpha=0.0)  # which llama.cpp takes for 'as it is'
    assert open_adapter(str(path), gguf_source)["layers.0.q"].scale == 1.0


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"general__type": "model"}, "'general.type' is 'model': this file is no LoRA adapter"),
        ({"adapter__type": "control"}, "'adapter.type' is 'control'"),
        ({"adapter__lora__alpha": None}, "'adapter.lora.alpha' is None"),
        ({"adapter__lora__alpha": float("inf")}, "'adapter.lora.alpha' is inf"),
        ({"adapter__lora__alpha": 1e38}, "not a number up to 1073741824"),
        ({"general__architecture": "qwen2"}, "this adapter is for the architecture 'qwen2', the model is 'llama'"),
        ({"adapter__alora__invocation_tokens": [1, 2]}, "aLoRA"),
    ],
)
def test_keys_of_a_gguf_file(tmp_path: Path, gguf_source: ModelSource, meta: Any, words: str) -> None:
    with pytest.raises(UserFault) as caught:
        open_adapter(str(gguf(tmp_path / "a.gguf", **meta)), gguf_source)
    assert words in caught.value.message


def test_tensors_of_a_gguf_file(tmp_path: Path, gguf_source: ModelSource) -> None:
    packed = {"blk.0.attn_q.weight.lora_a": (Q4_0, (2, 64), bytes(2 * 2 * 18))}
    with pytest.raises(UnsupportedModel, match="Q4_0; F32, F16, BF16, Q8_0 are read"):
        read_lora(gguf(tmp_path / "a.gguf", packed))
    with pytest.raises(UnsupportedModel, match=r"'blk\.0\.attn_norm\.weight' is no part"):
        read_lora(gguf(tmp_path / "b.gguf", {"blk.0.attn_norm.weight": (F32, (64,), bytes(256))}))
    with pytest.raises(InvalidModel, match=r"lora_b\) is missing"):
        read_lora(gguf(tmp_path / "c.gguf", {"blk.0.attn_q.weight.lora_a": (F32, (2, 64), bytes(512))}))


def test_kinds_that_do_not_meet(tmp_path: Path, source: ModelSource, gguf_source: ModelSource) -> None:
    with pytest.raises(UnsupportedModel, match="the model is a GGUF file, the adapter a folder"):
        open_adapter(str(folder(tmp_path / "a")), gguf_source)
    with pytest.raises(UnsupportedModel, match="the model is a folder, the adapter a GGUF file"):
        open_adapter(str(gguf(tmp_path / "a.gguf")), source)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing, match="there is no adapter at"):
        read_lora(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UnsupportedModel, match="no adapter: neither"):
        read_lora(tmp_path / "text")
    path = folder(tmp_path / "a")
    (path / "adapter_model.safetensors").unlink()
    (path / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(ModelFileMissing, match="save the adapter as safetensors"):
        read_lora(path)


def test_cut_files(tmp_path: Path, gguf_source: ModelSource, source: ModelSource) -> None:
    whole = gguf(tmp_path / "a.gguf").read_bytes()
    stored = (folder(tmp_path / "a") / "adapter_model.safetensors").read_bytes()
    for n in range(0, 400, 7):
        (tmp_path / "a.gguf").write_bytes(whole[:n])
        (tmp_path / "a" / "adapter_model.safetensors").write_bytes(stored[:n])
        for path, model in (("a.gguf", gguf_source), ("a", source)):
            with pytest.raises(UserFault):
                open_adapter(os.fspath(tmp_path / path), model)
