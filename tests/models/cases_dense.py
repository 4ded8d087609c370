"""Tiny models of dense families."""

from __future__ import annotations

from typing import Any

from tests.models.oracle import ABSENT, Case, Config, Tensors

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


def each_expert(tensors: Tensors, gate: str, up: str, down: str) -> Tensors:
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


def mixtral(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    found = each_expert(tensors, "w1.weight", "w3.weight", "w2.weight")
    return {name.replace(".mlp.", ".block_sparse_moe."): tensor for name, tensor in found.items()}, config


def _minimax(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    tensors, config = mixtral(tensors, config)
    del config["partial_rotary_factor"]
    own = {"rotary_dim": 16, "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True}
    own |= {"scoring_func": "sigmoid", "shared_intermediate_size": 0, "num_mtp_modules": 3, "mtp_transformer_layers": 1}
    return tensors, config | own | {"attn_type_list": [1] * config["num_hidden_layers"]}


DENSE: dict[str, Case] = {
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
            "rope_parameters": {**LONGROPE, "original_max_position_embeddings": 256},
            "original_max_position_embeddings": 256,
            "max_position_embeddings": 256,
        },
        _longrope,
        pre="gpt-4o",
        **GPT2,
    ),
    "mistral": Case("mistral", WINDOW, has_gguf=False),  # the converter leaves the window out,
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
    "arcee": Case(
        "arcee",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 50.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 4.0,
                "beta_slow": 1.0,
            }
        },
        pre="llama-bpe",
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
}
