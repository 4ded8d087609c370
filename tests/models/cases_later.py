"""Tiny models with latent attention, and of Llama 4 and Gemma 4."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.cases_dense import MINISTRAL3_ROPE, WINDOW, each_expert
from tests.models.cases_experts import GLM_SPECIALS
from tests.models.oracle import VOCABULARY, Case, Config, Tensors

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "routed_scaling_factor": 1.7,
    "tie_word_embeddings": False,
}
"""Of models with latent attention, one dense layer and a mixture."""

LATENT_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 2.0,
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}


def small_latents(model: torch.nn.Module) -> None:
    """What is compressed comes near to its norm's eps."""
    for name, parameter in model.named_parameters():
        if name.endswith("q_a_proj.weight"):
            parameter.data *= 2.0**-12
        elif name.endswith("kv_a_proj_with_mqa.weight"):
            parameter.data[:32] *= 2.0**-12


def _latent(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    config.pop("head_dim", None)
    config.pop("qk_head_dim", None)
    config |= {"moe_layer_freq": 1, "first_k_dense_replace": 1}
    config.pop("mlp_layer_types", None)
    return each_expert(tensors, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), config


def _deepseek3(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """With a layer that guesses further ids, as the published ones have it."""
    tensors, config = _latent(tensors, config)
    last = f"model.layers.{config['num_hidden_layers']}."
    tensors |= {
        f"{last}eh_proj.weight": torch.ones(64, 128),
        f"{last}self_attn.o_proj.weight": tensors["model.layers.0.self_attn.o_proj.weight"] * 2,
    }
    own = {"num_nextn_predict_layers": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "ep_size": 1}
    return tensors, config | own


def _mistral4(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """Published after version 5 of transformers: the rope and the experts are as that has them."""
    config["rope_parameters"] = {
        **config.pop("rope_scaling"),
        "rope_theta": config.pop("rope_theta"),
        "partial_rotary_factor": config.pop("partial_rotary_factor"),
    }
    return tensors, config


def _kimi(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    tensors, config = _latent(tensors, config)
    config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0}
    return tensors, config | {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}


BARE_NORMS = ("layers.0.mixer.qk_norm=per_head", "layers.1.mixer.qk_norm=per_head")
"""Without weights a norm may as well come before the rotation."""

LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "attn_scale": 0.4,
    "use_qk_norm": True,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 50.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}

GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "final_logit_softcapping": 15.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000.0},
    },
    **WINDOW,
}


def layer_scalars(model: Any) -> None:
    for index, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(1 + 0.2 * (index % 2) + 0.1 * index)


def _gemma4(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """With keys of layers that share others', as published files have them."""
    config["rope_parameters"] = config.pop("rope_scaling", None) or GEMMA4["rope_parameters"]
    own = config.pop("per_layer_config", None) or {}
    config["global_head_dim"] = 32
    if any("num_key_value_heads" in layer for layer in own.values()):
        config["num_global_key_value_heads"] = 1
    for index in range(config["num_hidden_layers"] - config["num_kv_shared_layers"], config["num_hidden_layers"]):
        size = 32 if config["layer_types"][index] == "full_attention" else 16
        for name, shape in (("k_proj", (2 * size, 64)), ("v_proj", (2 * size, 64)), ("k_norm", (size,))):
            tensors[f"model.layers.{index}.self_attn.{name}.weight"] = torch.ones(shape)
    return tensors, config


GEMMA3N: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "intermediate_size": [96, 96, 64, 96, 96, 128],
    "activation_sparsity_pattern": [0.8, 0.6, 0.0, 0.0, 0.7, 0.0],
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 272,
    "laurel_rank": 32,
    "altup_num_inputs": 4,
    "final_logit_softcapping": 15.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
    },
    **WINDOW,
}
GEMMA3N_SIZES = {
    "modality_router": 8.0, "altup_projections": 0.25, "altup_unembed": 0.25, "correction_coefs": 0.125,
    "prediction_coefs": 0.125,
}  # fmt: skip
"""So that the streams' shares, which are of the order of 1 / width, tell, and don't make a chaos of rounding."""


def _gemma3n(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """With keys of layers that share others', and the ropes' bases beside each other."""
    config.pop("rope_scaling", None)
    config |= {"rope_theta": 1000.0, "rope_local_base_freq": 100.0, "query_pre_attn_scalar": 16}
    for index in range(config["num_hidden_layers"] - config["num_kv_shared_layers"], config["num_hidden_layers"]):
        for name, shape in (("k_proj", (32, 64)), ("v_proj", (32, 64)), ("k_norm", (16,))):
            tensors[f"model.layers.{index}.self_attn.{name}.weight"] = torch.ones(shape)
    return tensors, config


LATER: dict[str, Case] = {
    "deepseek-v2": Case(
        "deepseek_v2",
        {
            **LATENT,
            "q_lora_rank": 48,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "rope_parameters": LATENT_ROPE,
        },
        _latent,
        pre="deepseek-llm",
        prepare=small_latents,
    ),
    "deepseek-v2 lite": Case(
        "deepseek_v2",
        {
            **LATENT,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
        _latent,
        pre="deepseek-llm",
        prepare=small_latents,
    ),
    "deepseek-v3": Case(
        "deepseek_v3",
        {
            **LATENT,
            "q_lora_rank": 48,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "rope_parameters": {**LATENT_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0},
            "num_mtp_layers": 0,
        },
        _deepseek3,
        pre="deepseek-v3",
        prepare=small_latents,
        seed=1,
    ),
    "kimi-k2": Case(
        "deepseek_v3",
        {
            **LATENT,
            "q_lora_rank": 48,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "rope_parameters": {**LATENT_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0},
            "num_mtp_layers": 0,
        },
        _kimi,
        pre="kimi-k2",
        prepare=small_latents,
        is_saved=False,  # transformers knows it as DeepSeek's
    ),
    "glm-4.7-flash": Case(
        "glm4_moe_lite",
        {
            **LATENT,
            "q_lora_rank": 48,
            "v_head_dim": 48,
            "n_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
        _latent,
        pre="glm4",
        specials=GLM_SPECIALS,
        prepare=small_latents,
    ),
    "mistral4": Case(
        "mistral4",
        {
            **LATENT,
            "q_lora_rank": 48,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "rope_parameters": {**MINISTRAL3_ROPE, "partial_rotary_factor": 0.5},
        },
        _mistral4,
        pre="tekken",
        prepare=small_latents,
        seed=2,
        model_class="Mistral4ForCausalLM",
        has_gguf=False,
    ),
    "llama4": Case(
        "llama4_text",
        {**LLAMA4, "attention_chunk_size": 24, "floor_scale": 20},
        has_gguf=False,
        seed=4,
        untouched=BARE_NORMS,
    ),
    "llama4 whole": Case(
        "llama4_text",
        {
            **LLAMA4,
            "attention_chunk_size": 8192,
            "floor_scale": 8192,
            "attn_scale": 0.1,
            "use_qk_norm": True,
            "interleave_moe_layer_step": 2,
        },
        pre="llama4",
        # both are longer than the text
        untouched=("layers.0.mixer.chunk", "layers.1.mixer.chunk", "layers.3.mixer.temperature", *BARE_NORMS),
    ),
    "gemma4": Case(
        "gemma4_text",
        {
            **GEMMA4,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCABULARY,
        },
        _gemma4,
        pre="gemma4",
        prepare=layer_scalars,
        untouched=("layers.5.feed_forward.activation",),  # they are close, and it is the last; others tell
    ),
    "gemma3n": Case("gemma3n_text", GEMMA3N, _gemma3n, pre="", sizes=GEMMA3N_SIZES),
    "gemma3n short": Case(
        "gemma3n_text",
        {**GEMMA3N, "vocab_size_per_layer_input": 200, "num_hidden_layers": 2, "num_kv_shared_layers": 0}
        | {"layer_types": GEMMA3N["layer_types"][:2], "activation_sparsity_pattern": [0.0, 0.6]}
        | {"intermediate_size": [96, 96]},
        _gemma3n,
        sizes=GEMMA3N_SIZES,
        has_gguf=False,  # its converter says zeros for ids that have nothing to say, not what id 0 does
    ),
    "gemma4 dense": Case(
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        _gemma4,
        pre="gemma4",
        prepare=layer_scalars,
    ),
    "gemma4 experts": Case(
        "gemma4_text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 48,
        },
        _gemma4,
        pre="gemma4",
        prepare=layer_scalars,
    ),
}
