"""Hugging Face folders, end to end: the reference backend's logits equal those of transformers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.opening import open_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from tests.backends.driver import Driver
from tests.models.tiny_hf import SIZES

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, Any] = {
    "plain": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "tied": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "biases": (LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "head_dim": (LlamaForCausalLM, LlamaConfig(**SIZES, head_dim=16)),
    "linear": (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
    ),
    "llama3": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "yarn": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=YARN)),
    "yarn, its own factor": (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, rope_parameters={**YARN, "attention_factor": 1.5, "truncate": False, "beta_fast": 16}),
    ),
    "yarn, scales": (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, rope_parameters={**YARN, "mscale": 1.5, "mscale_all_dim": 0.5}),
    ),
    "gelu": (LlamaForCausalLM, LlamaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")),
    "window": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=8)),
}


def saved(name: str, path: Path, dtype: torch.dtype = torch.float32, **more: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    kind, config = CASES[name]
    model: PreTrainedModel = kind(config).eval().to(dtype)
    for parameter in model.parameters():  # far from the initial near-zeros, so that a wrong turn shows
        parameter.data = (torch.randn_like(parameter.float()) * 0.2 + (parameter.dim() == 1)).to(dtype)
    model.save_pretrained(path, **more)
    return torch.nn.Module.float(model)


def logits(path: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    return Driver(ReferenceBackend(open_model(path))).logits(ids, chunk=7)


IDS = list(np.random.default_rng(1).integers(0, 64, 40))


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path)
    with torch.no_grad():
        theirs = model(torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(logits(tmp_path, IDS), theirs, atol=2e-4 * np.abs(theirs).max())


def test_shards_and_bf16(tmp_path: Path) -> None:
    saved("plain", tmp_path, torch.bfloat16, max_shard_size="20KB")
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.no_grad():
        theirs = model(torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(logits(tmp_path, IDS), theirs, atol=2e-4 * np.abs(theirs).max())
    assert open_model(tmp_path).raw("layers.0.q").type.name == "BF16"


def test_a_packed_checkpoint_runs(tmp_path: Path) -> None:
    """FP8 weights with a scale per row: the same logits as the plain model of the same values."""
    model = saved("plain", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    plain = dict(model.named_parameters())
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        scale = tensors[name].abs().amax(dim=1, keepdim=True) / 448
        packed = (tensors[name] / scale).to(torch.float8_e4m3fn)
        plain[name].data = packed.float() * scale
        tensors |= {name: packed, f"{name}_scale": scale}
    save_file(tensors, tmp_path / "model.safetensors")
    with torch.no_grad():
        theirs = model(torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(logits(tmp_path, IDS), theirs, atol=2e-4 * np.abs(theirs).max())
    source = open_model(tmp_path)
    assert source.raw("layers.0.q").type.name == "F32" and source.header.quantisation == "F8_E4M3 scaled"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model_type": "klingon"}, UnsupportedModel, "klingon"),
        ({"hidden_size": 32}, InvalidModel, "embedding"),
        ({"num_hidden_layers": 3}, InvalidModel, r"layers\.2"),
        ({"num_attention_heads": 0}, InvalidModel, "num_attention_heads"),
        ({"rope_parameters": {"rope_type": "spiral"}}, UnsupportedModel, "spiral"),
        ({"rope_parameters": 3}, InvalidModel, "rope"),
        ({"rms_norm_eps": "x"}, InvalidModel, "rms_norm_eps"),
    ],
)
def test_contradictions(change: dict[str, Any], error: type[Exception], words: str, tmp_path: Path) -> None:
    saved("plain", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(error, match=words):
        open_model(tmp_path)
