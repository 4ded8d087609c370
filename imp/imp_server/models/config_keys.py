"""Keys of config.json that decoders of the Llama kind don't look at."""

from __future__ import annotations

from imp_server.weights.key_rules import KeyRules

_OFF = (0, False)
_ONE = (0, 1)

_LIBRARY = [
    "_name_or_path", "architectures", "auto_map", "model_type", "torch_dtype", "dtype", "transformers_version",
    "tokenizer_class", "use_cache", "return_dict", "output_attentions", "output_hidden_states",
    "chunk_size_feed_forward", "id2label", "label2id", "problem_type", "task_specific_params", "bos_token_id",
    "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id", "bad_words_ids",
    "initializer_range", "initializer_factor", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
    "hidden_dropout_prob", "classifier_dropout", "gradient_checkpointing", "pretraining_tp", "torchscript",
    "tie_encoder_decoder", "pruned_heads", "finetuning_task", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "unsloth_version", "unsloth_fixed", "quantization_config", "compression_config",
    "quantization", "hf_quant_config", "neftune_noise_alpha", "name", "description", "text_config", "vision_config",
    "max_window_layers", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "prefix",
    "return_dict_in_generate", "output_scores", "remove_invalid_values", "tf_legacy_loss", "use_bfloat16",
    "is_decoder", "embedding_dropout", "residual_dropout", "_sliding_window_pattern", "cache_implementation",
]  # fmt: skip

DECODER_CONFIG_KEYS = KeyRules(
    inert=frozenset(_LIBRARY),
    neutral={
        "is_encoder_decoder": _OFF,
        "add_cross_attention": _OFF,
        "cross_attention_hidden_size": _OFF,
        "attention_multiplier": (),
        "embedding_multiplier": _ONE,
        "residual_multiplier": _ONE,
        "logits_scaling": _ONE,
        "logit_scale": _ONE,
        "attn_logit_softcapping": _OFF,
        "final_logit_softcapping": _OFF,
        "query_pre_attn_scalar": (),
        "qk_norm": _OFF,
        "use_qk_norm": _OFF,
        "use_sliding_window": _OFF,
        "no_rope_layers": (1,),
        "no_rope_layer_interval": _OFF,
        "attention_chunk_size": _OFF,
        "attn_temperature_tuning": _OFF,
        "alibi": _OFF,
        "parallel_attn": _OFF,
        "num_local_experts": _ONE,
        "num_experts": _ONE,
        "n_routed_experts": _OFF,
        "num_experts_per_tok": _ONE,
        "num_nextn_predict_layers": _OFF,
        "rope_interleave": _OFF,
        "rope_interleaved": _OFF,
        "norm_type": ("rms", "rmsnorm", "rms_norm"),
        "scale_emb": _ONE,
        "scale_depth": _ONE,
        "dim_model_base": (),
        "mup_base_width": (),
        "clip_qkv": _OFF,
        "num_kv_shared_layers": _OFF,
        "use_bidirectional_attention": (*_OFF, "vision"),  # among an image's positions
    },
)

ROPE_KEYS = KeyRules(
    inert=frozenset({"finetuned"}),
    neutral={
        "short_factor": (),
        "long_factor": (),
        "short_mscale": (),
        "long_mscale": (),
        "mrope_section": (),
        "alpha": (),
        "llama_4_scaling_beta": _OFF,
    },
)
