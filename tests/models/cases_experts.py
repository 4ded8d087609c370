"""Tiny models of mixtures of experts."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.models.cases_dense import LONG, WINDOW, each_expert, mixtral
from tests.models.oracle import ABSENT, Case, Config, Tensors

EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}


def _qwen_moe(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    config.pop("layer_types", None)
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    return each_expert(tensors, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), config


def _granite_moe(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    names = {
        "experts.gate_up_proj": "input_linear.weight",
        "experts.down_proj": "output_linear.weight",
        "router.weight": "router.layer.weight",
    }
    for theirs, published in names.items():
        tensors = {name.replace(theirs, published): tensor for name, tensor in tensors.items()}
    return tensors, config


GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "truncate": False,
}


def _blocks(name: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Random codes and scales of MXFP4 for a tensor [count, in, out], in OpenAI's layout."""
    count, n_in, n_out = shape
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    codes = rng.integers(0, 256, (count, n_out, n_in // 32, 16), dtype=np.uint8)
    scales = rng.integers(123, 126, (count, n_out, n_in // 32), dtype=np.uint8)
    return torch.from_numpy(codes), torch.from_numpy(scales)


def packed_experts(model: torch.nn.Module) -> None:
    """gpt-oss's experts get values that MXFP4 has, by transformers' own function."""
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            blocks, scales = _blocks(name, tuple(parameter.shape))
            parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)


def _gpt_oss(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = _blocks(name, tuple(tensors.pop(name).shape))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    return tensors, config


GLM_SPECIALS = ("<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>")

SIGMOID_ROUTER = {
    "moe_intermediate_size": 48,
    "num_experts_per_tok": 3,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
"""Of GLM-4.5 and those that are like it."""


def _expert_by_expert(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    config.pop("layer_types", None)
    return each_expert(tensors, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), config


def _ernie_moe(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    tensors, config = _expert_by_expert(tensors, config)
    renamed = {name.replace("mlp.gate.moe_statics", "mlp.moe_statics"): value for name, value in tensors.items()}
    renamed["model.mtp_linear_proj.0.weight"] = torch.ones(64, 128)
    return renamed, config | {"num_nextn_predict_layers": 1}


def _hunyuan_moe(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    tensors, config = _expert_by_expert(tensors, config)
    n = config["num_hidden_layers"]
    top_k = config.pop("num_experts_per_tok", None) or config["moe_topk"]
    lists = {"moe_topk": [top_k] * n, "num_shared_expert": [1] * n}
    lists["moe_intermediate_size"] = [config["intermediate_size"]] * n
    return tensors, config | lists | {"use_qk_norm": True, "use_cla": False, "use_mixed_mlp_moe": True}


def _bailing(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """Ling's names for what GLM-4.5 has, too."""
    tensors, config = _expert_by_expert(tensors, config)
    names = {
        "embed_tokens": "word_embeddings",
        "self_attn.o_proj": "attention.dense",
        "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm",
        "gate.e_score_correction_bias": "gate.expert_bias",
    }
    found: Tensors = {}
    for name, tensor in tensors.items():
        for theirs, published in names.items():
            name = name.replace(theirs, published)
        found[name] = tensor
    for q in [name for name in found if "q_proj" in name]:
        parts = [found.pop(q.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        found[q.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
    config |= {"num_experts": config.pop("n_routed_experts"), "num_shared_experts": config.pop("n_shared_experts")}
    config |= {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "use_qkv_bias": False}
    config |= {"model_type": "bailing_moe_v2", "architectures": ["BailingMoeV2ForCausalLM"], "use_qk_norm": True}
    return found, config


GRANITE4: dict[str, Any] = {
    "attention_multiplier": 0.4,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 4.0,
    "tie_word_embeddings": True,
    "layer_types": ["attention"] * 2,
    "shared_intermediate_size": 48,
    "position_embedding_type": "rope",
    "intermediate_size": 48,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
}


def _granite4(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    config["layer_types"] = ["attention"] * config["num_hidden_layers"]
    return _granite_moe(tensors, config)


PHI_MOE: dict[str, Any] = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "intermediate_size": 48,
    "attention_bias": True,
    "lm_head_bias": True,
    "router_jitter_noise": 0.2,
    "sliding_window": 40,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 1.8, 1.9],
        "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 9.5, 10.0],
        "short_mscale": 1.2,
        "long_mscale": 1.4,
        "original_max_position_embeddings": 64,
    },
}

JITTER = ("layers.0.feed_forward.jitter",)
"""As published, which GGUF files don't say: so little that hardly any expert comes so near."""


def long_factors(model: Any) -> None:
    """transformers takes the long factors' magnitude, but always the short ones; Microsoft's own code takes both."""
    rotary = model.model.rotary_emb
    own = rotary.rope_init_fn
    rotary.rope_init_fn = lambda config: own(config, seq_len=config.max_position_embeddings)


def _phi_moe(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    tensors, config = mixtral(tensors, config)
    renamed = {name.replace(".router.", ".gate."): tensor for name, tensor in tensors.items()}
    return renamed, config | {"architectures": ["PhiMoEForCausalLM"]}


def _expert_by_expert_with_windows(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    return each_expert(tensors, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), config


MIXTURES: dict[str, Case] = {
    "mixtral": Case("mixtral", EXPERTS, mixtral, pre=""),
    "qwen2-moe": Case(
        "qwen2_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 32,
        },
        _qwen_moe,
        pre="qwen2",
    ),
    "qwen3-moe": Case(
        "qwen3_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "head_dim": 32,
        },
        _qwen_moe,
        pre="qwen2",
    ),
    # llama.cpp's converter knows one eps for it, which is too small to show
    "olmoe": Case(
        "olmoe",
        {"num_experts": 6, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "num_key_value_heads": 4},
        _qwen_moe,
        pre="dbrx",
        untouched=("norm_eps",),
    ),
    "granite-moe": Case(
        "granitemoe",
        {
            **EXPERTS,
            "attention_multiplier": 0.4,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
        _granite_moe,
        pre="refact",
    ),
    "gpt-oss": Case(
        "gpt_oss",
        {**EXPERTS, "head_dim": 32, "rope_parameters": GPT_OSS_ROPE, "intermediate_size": 64, **WINDOW},
        _gpt_oss,
        pre="gpt-4o",
        prepare=packed_experts,
    ),
    "glm4-moe": Case(
        "glm4_moe",
        {**SIGMOID_ROUTER, "attention_bias": True, "use_qk_norm": True, "n_shared_experts": 1},
        _expert_by_expert,
        pre="glm4",
        specials=GLM_SPECIALS,
    ),
    "glm4-moe air": Case(
        "glm4_moe",
        {**SIGMOID_ROUTER, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "attention_bias": True},
        _expert_by_expert,
        pre="glm4",
        specials=GLM_SPECIALS,
    ),
    "ernie4.5-moe": Case(
        "ernie4_5_moe",
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 48,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "intermediate_size": 192,  # the converter has the shared experts' width of this, over the key heads
        },
        _ernie_moe,
        seed=1,
        pre="",
        sizes={"e_score_correction_bias": 0.1},
    ),
    "hunyuan-moe": Case(
        "hunyuan_v1_moe",
        {"num_experts": 8, "moe_topk": 3, "intermediate_size": 48, "head_dim": 32},
        _hunyuan_moe,
        seed=1,
        pre="hunyuan",
    ),
    "bailing-moe2": Case(
        "glm4_moe",
        {**SIGMOID_ROUTER, "use_qk_norm": True, "n_shared_experts": 1, "head_dim": 16},
        _bailing,
        pre="bailingmoe2",
        is_saved=False,  # transformers has it by its own code only: GLM-4.5's parts are the same
    ),
    "granite4": Case("granitemoehybrid", GRANITE4, _granite4, pre="refact"),
    "granite4 moe": Case(
        "granitemoehybrid",
        {**GRANITE4, "num_local_experts": 6, "num_experts_per_tok": 2, "position_embedding_type": "nope"},
        _granite4,
        seed=1,
        has_gguf=False,  # the converter gives layers without rope to hybrids only
    ),
    "granite-moe shared": Case(
        "granitemoeshared",
        {
            **{
                name: value
                for name, value in GRANITE4.items()
                if name.endswith(("multiplier", "scaling", "embeddings"))
            },
            **EXPERTS,
            "shared_intermediate_size": 48,
        },
        _granite_moe,
        pre="refact",
    ),
    "cohere2-moe": Case(
        "cohere2_moe",
        {
            "num_hidden_layers": 5,
            "rms_norm_eps": ABSENT,
            "layer_norm_eps": 1e-2,
            "logit_scale": 0.25,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1,
            "head_dim": 16,
            "intermediate_size": 48,
            "prefix_dense_intermediate_size": 80,
            "mlp_layer_types": ["dense"] + ["sparse"] * 4,
            "layer_types": ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"],
            **WINDOW,
        },
        _expert_by_expert_with_windows,
        pre="command-r",
    ),
    "cohere2-moe sigmoid": Case(
        "cohere2_moe",
        {
            "rms_norm_eps": 1e-2,
            "logit_scale": 0.25,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "head_dim": 16,
            "intermediate_size": 48,
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "mlp_layer_types": ["sparse"] * 2,
            "layer_types": ["sliding_attention", "full_attention"],
            **WINDOW,
        },
        _expert_by_expert_with_windows,
        pre="command-r",
        seed=1,
        has_gguf=False,
    ),
    "phi-moe": Case(
        "phimoe",
        {
            **PHI_MOE,
            **LONG,
            "router_jitter_noise": 0.01,
            "rope_parameters": {**PHI_MOE["rope_parameters"], "long_mscale": 1.1547005383792515},
        },
        _phi_moe,
        pre="",
        prepare=long_factors,
        seed=9,
        untouched=JITTER,
    ),
    "phi-moe short": Case(
        "phimoe",
        {
            **PHI_MOE,
            "rope_parameters": {**PHI_MOE["rope_parameters"], "original_max_position_embeddings": 128},
            "max_position_embeddings": 128,
        },
        _phi_moe,
        has_gguf=False,
    ),
}
