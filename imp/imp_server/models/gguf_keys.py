"""Keys of GGUF files, without their `<architecture>.`, that decoders of the Llama kind don't look at.

Sources: the GGUF documentation's list of keys, and what llama.cpp's loader reads for any architecture.
"""

from __future__ import annotations

from imp_server.weights.key_rules import KeyRules

_OFF = (0, False)
_ONE = (0, 1)

DECODER_KEYS = KeyRules(
    inert=frozenset(
        {
            "vocab_size",  # the embedding's rows and the tokenizer say it
            "tensor_data_layout",  # how a converter of long ago ordered q and k; files in use have one order
            "rope.scaling.finetuned",  # whether it was trained with its scaling
            "attention.layer_norm_epsilon",  # of the other kind of norm
            "attention.group_norm_epsilon",
            "attention.group_norm_groups",
        }
    ),
    neutral={
        "use_parallel_residual": _OFF,
        "hidden_activation": ("silu", ""),
        "logit_scale": _ONE,
        "embedding_scale": _ONE,
        "residual_scale": _ONE,
        "attn_logit_softcapping": _OFF,
        "final_logit_softcapping": _OFF,
        "router_logit_softcapping": _OFF,
        "attention.causal": (True,),
        "attention.max_alibi_bias": _OFF,
        "attention.clamp_kqv": _OFF,
        "attention.scale": _OFF,
        "attention.output_scale": _ONE,
        "attention.value_scale": _ONE,
        "attention.temperature_length": _OFF,
        "attention.temperature_scale": _OFF,
        "attention.sliding_window_pattern": (0, 1, True),  # with a window, each layer has it
        "attention.shared_kv_layers": _OFF,
        "expert_group_count": _ONE,
        "expert_group_used_count": _ONE,
        "expert_group_scale": _ONE,
        "expert_weights_scale": _ONE,
        "expert_weights_norm": (True,),
        "expert_gating_func": _ONE,  # 1 = softmax
        "interleave_moe_layer_step": _ONE,
        "moe_every_n_layers": _ONE,
        "full_attention_interval": _ONE,
        "num_loops": _ONE,
        "rope.freq_base_swa": (),
        "rope.dimension_count_swa": (),
        "rope.scaling.alpha": _ONE,
        "rope.scaling.yarn_attn_factor": _ONE,
        "rope.scaling.yarn_log_multiplier": _OFF,
    },
    foreign=(
        "expert", "moe_", "nextn_", "leading_dense_", "n_deepstack_", "deepstack_", "decoder_", "swin_", "rescale_",
        "time_", "token_shift_", "skip_loop_", "hash_layer_", "activation", "altup.", "swiglu_", "embedding_length_",
        "dense_", "target_", "block_size", "conv_", "selector_", "sample_from_", "has_confidence_", "norm_before_",
        "adapters.", "attention.", "hyper_connection.", "ple.", "rope.", "attn_res.", "hrm.", "ssm.", "kda.", "wkv.",
        "posnet.", "convnext.", "classifier.", "shortconv.", "features_length", "vision.", "audio.",
    ),
)  # fmt: skip
