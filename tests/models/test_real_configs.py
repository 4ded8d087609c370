"""What published configs say is understood: of each family those values that its code was published with, and some
whole configs in the form in which they lie beside the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from imp_server.models.architecture import Architecture
from imp_server.models.checkpoint_reader import CheckpointReader
from imp_server.models.feed_forwards import Dense, Experts
from imp_server.models.mixers import Attention, LatentAttention
from imp_server.models.opening import families_by_model_type
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.header import ModelHeader
from transformers import AutoConfig, AutoModelForCausalLM

from tests.models.family_cases import CASES
from tests.models.oracle import Case, old_config

CASE_OF = {case.kind: name for name, case in reversed(CASES.items()) if case.is_saved} | {"glm4_moe": "glm4-moe air"}
STATED: dict[str, dict[str, Any]] = {
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
}
"""What all published models of a family say otherwise than its code does where a config says nothing."""
HYBRID = {"granitemoehybrid"}
"""Without a list of layers theirs keep a state."""


class AsDeep(Checkpoint):
    """Names of a tiny model's tensors, as if each further layer were like its last."""

    def __init__(self, tiny: frozenset[str], n_tiny_layers: int, n_layers: int) -> None:
        self._tiny, self._last, self._n_layers = tiny, n_tiny_layers - 1, n_layers

    def __contains__(self, name: str) -> bool:
        found = re.match(r"model\.layers\.(\d+)\.(.*)", name)
        return (f"model.layers.{min(int(found[1]), self._last)}.{found[2]}" if found else name) in self._tiny

    def names(self) -> list[str]:
        return [*self._tiny, *(f"model.layers.{index}.x" for index in range(self._n_layers))]


@cache
def published_names(name: str) -> tuple[frozenset[str], int]:
    """Of a case's tensors in published files, and the number of its layers."""
    case: Case = CASES[name]
    config = AutoConfig.for_model(case.kind, **case.full_config())
    with torch.device("meta"):
        named = getattr(transformers, case.model_class)(config) if case.model_class else None
        made: Callable[[Any], Any] = AutoModelForCausalLM.from_config
        model = made(config) if named is None else named
    tensors, _ = case.published(dict(model.state_dict()), old_config(config.to_dict()))
    return frozenset(tensors), config.num_hidden_layers


def described(config: dict[str, Any], case: str) -> Architecture:
    kind = config["model_type"]
    header = ModelHeader(Path("real"), "safetensors", kind, "real", config, {}, 0, 0, "", 0)
    reader = CheckpointReader(header, AsDeep(*published_names(case), config["num_hidden_layers"]))
    architecture = families_by_model_type()[kind].describe(reader)
    reader.finish()
    return architecture


@pytest.mark.parametrize("kind", sorted(CASE_OF.keys() - HYBRID))
def test_the_values_that_a_family_s_code_was_published_with(kind: str) -> None:
    config = json.loads(AutoConfig.for_model(kind, **STATED.get(kind, {})).to_json_string(use_diff=False))
    got = described(config, CASE_OF[kind])
    assert (got.n_layers, got.width, got.vocab_size, got.context_length) == (
        config["num_hidden_layers"],
        config["hidden_size"],
        config["vocab_size"],
        config["max_position_embeddings"],
    )
    assert {layer.mixer.n_heads for layer in got.layers} == {config["num_attention_heads"]}  # type: ignore[attr-defined]


DEEPSEEK_V3 = """{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
"hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
"max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
"n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
"num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
"q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme":
"dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06,
"rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
"original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
"scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
"torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128,
"vocab_size": 129280}"""
QWEN3_30B = """{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
"hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
"max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
"norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
"num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
"rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
"tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
"use_sliding_window": false, "vocab_size": 151936}"""
LLAMA31_8B = """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
"initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
"model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
"pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
"high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
"tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true,
"vocab_size": 128256}"""


def test_deepseek_v3() -> None:
    got = described(json.loads(DEEPSEEK_V3), "deepseek-v3")
    mixer, experts = got.layers[3].mixer, got.layers[3].feed_forward
    assert isinstance(mixer, LatentAttention) and isinstance(experts, Experts)
    assert [type(layer.feed_forward) for layer in got.layers].count(Dense) == 3
    assert (mixer.rank, mixer.q_rank, mixer.head_size, mixer.rope.dims, mixer.value_size) == (512, 1536, 192, 64, 128)
    # 0.1 ln 40 + 1, squared, over the root of 192
    assert mixer.scale == pytest.approx(1.3688879454113936**2 / 192**0.5)
    assert (experts.count, experts.top_k, experts.n_groups, experts.top_groups, experts.scale) == (256, 8, 8, 4, 2.5)
    assert (experts.gating, experts.selection_bias, experts.normalise_top_k) == ("sigmoid", True, True)
    assert sum(part.heads * part.size for part in mixer.cached()) == 576


def test_qwen3_30b() -> None:
    got = described(json.loads(QWEN3_30B), "qwen3-moe")
    mixer, experts = got.layers[0].mixer, got.layers[0].feed_forward
    assert isinstance(mixer, Attention) and isinstance(experts, Experts)
    assert (mixer.n_heads, mixer.n_kv_heads, mixer.head_size, mixer.qk_norm) == (32, 4, 128, "per_head")
    assert (experts.count, experts.top_k, experts.hidden, experts.normalise_top_k) == (128, 8, 768, True)


def test_llama_31_8b() -> None:
    got = described(json.loads(LLAMA31_8B), "falcon3")
    mixer = got.layers[0].mixer
    assert isinstance(mixer, Attention) and mixer.rope is not None
    assert (mixer.n_kv_heads, mixer.head_size, mixer.rope.scaling.kind) == (8, 128, "llama3")
    assert (mixer.rope.base, mixer.rope.scaling.factor, got.context_length) == (500000.0, 8.0, 131072)
