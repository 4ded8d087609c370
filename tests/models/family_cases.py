"""One tiny model of each family, at least one whole pattern of its layers each."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.models.oracle import ABSENT, VOCABULARY, Case, Config, Tensors

WINDOW = {"sliding_window": 9}


def _without_layer_types(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """Published files leave the pattern to the code, or say every how many layers one sees all."""
    config.pop("layer_types", None)
    return tensors, config


def _gemma3(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    del config["layer_types"]
    config |= {"rope_theta": 1e4, "rope_local_base_freq": 1e2, "sliding_window_pattern": 3}
    config["rope_scaling"] = {"rope_type": "linear", "factor": 4.0}
    return tensors, config


def _gemma3_of_six(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    tensors, config = _gemma3(tensors, config)
    return tensors, config | {"sliding_window_pattern": 6}


GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
}
OLMO3_ROPE = {
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 50.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.2,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}


def _olmo3(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    scaling = dict(OLMO3_ROPE["full_attention"])
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    return tensors, config


LONG = {"original_max_position_embeddings": 64, "max_position_embeddings": 256}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7],
    "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
    "original_max_position_embeddings": 64,
}
GPT2: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer"}
MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 2.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}


def _longrope(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    config["original_max_position_embeddings"] = config["rope_scaling"].pop("original_max_position_embeddings")
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    return tensors, config


def _ministral3(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """Published after version 5 of transformers: the rope is as that has it."""
    config["rope_parameters"] = {**config.pop("rope_scaling"), "rope_theta": config.pop("rope_theta")}
    return tensors, config


def _cohere2(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    del config["layer_types"]
    return tensors, config | {"sliding_window_pattern": 4, "rotary_pct": 1.0}


def _minicpm(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    for key in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"):
        del config[key]
    config |= {"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"]}
    return tensors, config | {"scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 16}


EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}


def _each_expert(tensors: Tensors, gate: str, up: str, down: str) -> Tensors:
    """Published files have a tensor for each expert, not one for all."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        prefix, _, last = name.rpartition(".experts.")
        if last not in ("gate_up_proj", "down_proj"):
            found[name] = tensor
            continue
        for e, expert in enumerate(tensor):
            own = f"{prefix}.experts.{e}."
            if last == "down_proj":
                found[own + down] = expert
            else:
                found[own + gate], found[own + up] = expert.chunk(2)
    return found


def _qwen_moe(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    config.pop("layer_types", None)
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    return _each_expert(tensors, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), config


def _mixtral(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    found = _each_expert(tensors, "w1.weight", "w3.weight", "w2.weight")
    return {name.replace(".mlp.", ".block_sparse_moe."): tensor for name, tensor in found.items()}, config


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
    return _each_expert(tensors, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), config


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
    return _each_expert(tensors, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), config


def _minimax(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    tensors, config = _mixtral(tensors, config)
    del config["partial_rotary_factor"]
    own = {"rotary_dim": 16, "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True}
    own |= {"scoring_func": "sigmoid", "shared_intermediate_size": 0, "num_mtp_modules": 3, "mtp_transformer_layers": 1}
    return tensors, config | own | {"attn_type_list": [1] * config["num_hidden_layers"]}


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


def long_factors(model: torch.nn.Module) -> None:
    """transformers takes the long factors' magnitude, but always the short ones; Microsoft's own code takes both."""
    rotary = model.model.rotary_emb
    own = rotary.rope_init_fn
    rotary.rope_init_fn = lambda config: own(config, seq_len=config.max_position_embeddings)


def _phi_moe(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    tensors, config = _mixtral(tensors, config)
    renamed = {name.replace(".router.", ".gate."): tensor for name, tensor in tensors.items()}
    return renamed, config | {"architectures": ["PhiMoEForCausalLM"]}


def _expert_by_expert_with_windows(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    return _each_expert(tensors, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), config


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


def layer_scalars(model: torch.nn.Module) -> None:
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
        for name in ("k_proj", "v_proj", "k_norm"):
            tensors[f"model.layers.{index}.self_attn.{name}.weight"] = torch.ones(32, 64)
    return tensors, config


CASES: dict[str, Case] = {
    "qwen2": Case("qwen2", {"tie_word_embeddings": False}, _without_layer_types, pre="qwen2"),
    "qwen2 windows": Case(
        "qwen2",
        {"use_sliding_window": True, "max_window_layers": 1, "tie_word_embeddings": True, **WINDOW},
        _without_layer_types,
        has_gguf=False,
    ),
    "qwen3": Case("qwen3", {"head_dim": 32, "tie_word_embeddings": True}, _without_layer_types, pre="qwen2"),
    "phi3": Case("phi3", {"sliding_window": 40}, pre=""),
    "phi4": Case(
        "phi3", {"partial_rotary_factor": 0.75, "sliding_window": None}, pre="gpt-4o", tokenizer_class="GPT2Tokenizer"
    ),
    "granite": Case(
        "granite",
        {
            "attention_multiplier": 0.4,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
        pre="refact",
    ),
    "smollm3": Case("smollm3", {"num_hidden_layers": 4}, _without_layer_types, pre="smaug-bpe"),
    "olmo2": Case("olmo2", {}, pre="dbrx"),
    "olmo3": Case("olmo3", {"num_hidden_layers": 4, "rope_parameters": OLMO3_ROPE, **WINDOW}, _olmo3, pre="dbrx"),
    "falcon3": Case("llama", {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1000042.0}}),
    "starcoder2": Case(
        "starcoder2",
        {"norm_epsilon": 1e-2, "use_bias": True, "rms_norm_eps": ABSENT, "sliding_window": None},
        pre="starcoder",
    ),
    "starcoder2 windows": Case(
        "starcoder2", {"norm_epsilon": 1e-2, "use_bias": True, "rms_norm_eps": ABSENT, **WINDOW}, has_gguf=False
    ),
    "gemma2": Case(
        "gemma2",
        {
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 15.0,
            "rms_norm_eps": 0.5,
            **WINDOW,
        },
        _without_layer_types,
        zero_centred_norms=True,
        pre="",
    ),
    "gemma2 scaled": Case(
        "gemma2",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 144,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 15.0,
            "rms_norm_eps": 0.5,
            **WINDOW,
        },
        _without_layer_types,
        has_gguf=False,
        zero_centred_norms=True,
    ),
    "gemma3": Case(
        "gemma3_text",
        {
            "num_hidden_layers": 6,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "rms_norm_eps": 0.5,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "rope_parameters": GEMMA3_ROPE,
            **WINDOW,
        },
        _gemma3_of_six,
        zero_centred_norms=True,
        pre="",
    ),
    "gemma3 scaled": Case(
        "gemma3_text",
        {
            "num_hidden_layers": 3,
            "head_dim": 32,
            "query_pre_attn_scalar": 50,
            "rms_norm_eps": 0.5,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": GEMMA3_ROPE,
            **WINDOW,
        },
        _gemma3,
        has_gguf=False,
        zero_centred_norms=True,
    ),
    "phi4-mini": Case("phi3", {"rope_parameters": LONGROPE, **LONG}, _longrope, pre="gpt-4o", **GPT2),
    "phi4-mini short": Case(
        "phi3",
        {
            "rope_parameters": {**LONGROPE, "original_max_position_embeddings": 128},
            "original_max_position_embeddings": 128,
            "max_position_embeddings": 128,
        },
        _longrope,
        pre="gpt-4o",
        **GPT2,
    ),
    "mistral": Case("mistral", WINDOW, has_gguf=False),  # the converter leaves the window out
    "ministral": Case(
        "ministral",
        {
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            **WINDOW,
        },
        has_gguf=False,  # the converter doesn't know it
    ),
    "ministral3": Case("ministral3", {"head_dim": 16, "rope_parameters": MINISTRAL3_ROPE}, _ministral3, pre=""),
    "glm4": Case(
        "glm4",
        {"head_dim": 16, "attention_bias": True},
        pre="glm4",
        specials=("<|endoftext|>", "<s>", "<|user|>"),
    ),
    "cohere2": Case(
        "cohere2",
        {"num_hidden_layers": 4, "rms_norm_eps": ABSENT, "layer_norm_eps": 1e-2, "logit_scale": 0.25, **WINDOW},
        _cohere2,
        pre="command-r",
    ),
    "nemotron": Case(
        "nemotron",
        {"rms_norm_eps": ABSENT, "norm_eps": 1e-2},
        zero_centred_norms=True,
        pre="",
    ),
    "exaone4": Case(
        "exaone4",
        {"num_hidden_layers": 4, **WINDOW},
        _without_layer_types,
        pre="exaone4",
        untouched=("layers.3.mixer.qk_norm=per_head_after_rope",),  # it has no rope
    ),
    "exaone4 small": Case("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}, pre="exaone4"),
    "seed-oss": Case(
        "seed_oss", {"head_dim": 32, "attention_bias": True, "attention_out_bias": False}, pre="seed-coder"
    ),
    "ernie4.5": Case("ernie4_5", {"head_dim": 32, "use_bias": False}, pre=""),
    "ernie4.5 biases": Case("ernie4_5", {"head_dim": 32, "use_bias": True}, has_gguf=False),
    "hunyuan": Case("hunyuan_v1_dense", {"head_dim": 32, "attention_bias": False}, pre="hunyuan-dense"),
    "minicpm": Case(
        "granite",
        {
            "attention_multiplier": 0.25,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 1.4 / 2**0.5,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
        _minicpm,
        pre="",
        is_saved=False,  # transformers has it by its own code only: Granite with the same multipliers is the oracle
    ),
    "mixtral": Case("mixtral", EXPERTS, _mixtral, pre=""),
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
        {"num_experts": 6, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5},
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
    "minimax-m2": Case(
        "minimax_m2",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 48,
            "head_dim": 32,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
        },
        _minimax,
        pre="minimax-m2",
    ),
    "ernie4.5-moe": Case(
        "ernie4_5_moe",
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 48,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
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
        {**SIGMOID_ROUTER, "use_qk_norm": True, "n_shared_experts": 1},
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
        prepare=layer_scalars,
        has_cpu=False,
        untouched=("layers.5.feed_forward.activation",),  # they are close, and it is the last; others tell
        has_gguf=False,
    ),
    "gemma4 dense": Case(
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        _gemma4,
        prepare=layer_scalars,
        has_gguf=False,
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
        prepare=layer_scalars,
        has_cpu=False,
        has_gguf=False,
    ),
}
