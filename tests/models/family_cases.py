"""One tiny model of each family, at least one whole pattern of its layers each."""

from __future__ import annotations

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
            "attn_logit_softcapping": 20.0,
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
            "attn_logit_softcapping": 20.0,
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
}
