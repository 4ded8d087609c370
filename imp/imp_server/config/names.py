"""Names that aren't our own: short flags, the original's flags and keys, and what has no effect here."""

from __future__ import annotations

# Further flags of a knob. The environment name follows the flag (--think-budget, IMP_THINK_BUDGET).
FLAG_ALIASES: dict[str, str] = {
    "--threads": "cpu.threads",
    "--quantize": "cpu.quantize",
    "--think-budget": "reasoning.think_budget",
    "--max-batch": "scheduler.max_rows",
    "--prefill-chunk-size": "scheduler.prefill_chunk",
    "--min-kv-tokens": "kv_cache.min_tokens",
    "--prefix-cache": "prefix_cache.path",
    "--checkpoint-min-step": "prefix_cache.checkpoint_min_step",
    "--draft-model": "speculative.draft_model",
    "--spec-draft-model": "speculative.draft_model",
    "--draft-max": "speculative.draft_max",
    "--spec-draft-n-max": "speculative.draft_max",
    "--draft-p-min": "speculative.draft_p_min",
    "--spec-draft-p-min": "speculative.draft_p_min",
    "--temperature": "sampling.temperature",
    "--top-k": "sampling.top_k",
    "--top-p": "sampling.top_p",
    "--min-p": "sampling.min_p",
    "--typical-p": "sampling.typical_p",
    "--repetition-penalty": "sampling.repetition_penalty",
    "--presence-penalty": "sampling.presence_penalty",
    "--frequency-penalty": "sampling.frequency_penalty",
    "--grammar-memo-mib": "grammar.memory_mib",
    "--lora": "adapters.lora",
    "--models-dir": "router.models_dir",
    "--models-preset": "router.models_preset",
    "--models-max": "router.models_max",
    "--models-autoload": "router.models_autoload",
    "--sleep-idle-seconds": "engine.idle_unload_s",
    "--request-timeout": "server.request_timeout_s",
    "--drain-seconds": "server.drain_timeout_s",
    "--http-read-timeout": "server.body_timeout_s",
    "--http-write-timeout": "server.send_timeout_s",
    "--detached-seconds": "streams.detached_s",
    "--otlp-endpoint": "metrics.otlp_endpoint",
    "--otlp-service-name": "metrics.otlp_service_name",
    "--sse-ping-interval": "streams.keep_alive_s",
    "--responses-store-ttl": "responses.store_ttl_s",
    "--vram-budget": "cuda.memory_mib",
    "--device": "cuda.device",
}

# What llama.cpp's and vLLM's servers call it -> ours, or what to do instead. Not taken, but told of.
FOREIGN_FLAGS: dict[str, str] = {
    "-m": "--model",
    "-hf": "imp serve hf:org/repo:QUANTISATION",
    "--hf-repo": "imp serve hf:org/repo:QUANTISATION",
    "-a": "--alias",
    "--served-model-name": "--alias",
    "-c": "--max-seq-len",
    "--ctx-size": "--max-seq-len",
    "--max-model-len": "--max-seq-len",
    "-n": "--max-tokens",
    "--predict": "--max-tokens",
    "--n-predict": "--max-tokens",
    "-t": "--threads",
    "-np": "--max-batch",
    "--parallel": "--max-batch",
    "--max-num-seqs": "--max-batch",
    "-ctk": "--kv-cache-dtype",
    "--cache-type-k": "--kv-cache-dtype",
    "-ctv": "--kv-cache-dtype",
    "--cache-type-v": "--kv-cache-dtype",
    "-md": "--draft-model",
    "--model-draft": "--draft-model",
    "--temp": "--temperature",
    "--repeat-penalty": "--repetition-penalty",
    "-v": "--log-level debug",
    "--verbose": "--log-level debug",
    "-ngl": "leave it out: there is no GPU backend yet",
    "--n-gpu-layers": "leave it out: there is no GPU backend yet",
}

# Flags that stand for one value of a knob.
VALUE_FLAGS: dict[str, tuple[str, str]] = {
    "--kv-fp8": ("kv_cache.dtype", "fp8"),
    "--kv-int8": ("kv_cache.dtype", "int8"),
    "--kv-int4": ("kv_cache.dtype", "int4"),
    "--kv-nvfp4": ("kv_cache.dtype", "nvfp4"),
    "--kv-mxfp4": ("kv_cache.dtype", "mxfp4"),
    "--kv-fp16": ("kv_cache.dtype", "f16"),
    "--no-cuda-graphs": ("cuda.graphs", "never"),
    "--no-prefix-cache": ("prefix_cache.enabled", "false"),
}

# Keys of the original.
KEY_ALIASES: dict[str, str] = {
    "constrained.jump_ahead": "grammar.jump_ahead",
    "grammar.memo_mib": "grammar.memory_mib",
    "runtime.deterministic": "engine.deterministic",
    "runtime.warmup": "engine.warmup",
    "runtime.decode_pipeline": "engine.overlap",
    "runtime.max_seq_len": "model.max_seq_len",
    "runtime.max_batch_size": "scheduler.max_rows",
    "runtime.prefill_chunk_size": "scheduler.prefill_chunk",
    "runtime.vram_budget_mb": "cuda.memory_mib",
    "runtime.cuda_graphs": "cuda.graphs",
    "runtime.think_answer_reserve": "reasoning.answer_reserve",
    "kv_cache.host_spill_mb": "kv_cache.host_spill_mib",
    "server.prefix_cache": "prefix_cache.enabled",
    "server.prefix_pin_budget_pct": "prefix_cache.pin_budget_pct",
    "server.session_ttl_s": "prefix_cache.session_ttl_s",
    "server.transcript_token_reuse": "prefix_cache.transcripts",
    "server.recurrent_snapshot_mb": "prefix_cache.snapshot_mib",
    "server.agent_scan_limit": "reasoning.agent_scan_tokens",
    "server.otlp_endpoint": "metrics.otlp_endpoint",
    "server.otlp_service_name": "metrics.otlp_service_name",
    "warm_cache.enabled": "cpu.pack_cache",
    "warm_cache.dir": "cpu.pack_cache_path",
}

VALUE_ALIASES: dict[tuple[str, str], str] = {
    ("kv_cache.dtype", "fp16"): "f16",
    ("kv_cache.dtype", "fp32"): "f32",
    ("scheduler.prefill_chunk", "-1"): "0",
    ("streams.keep_alive_s", "-1"): "0",
    ("engine.idle_unload_s", "-1"): "0",
}

# Keys of the original that mean nothing here: accepted with one line. A name with a final dot is a whole section.
NO_EFFECT_KEYS = frozenset({
    "attention.",
    "moe.",
    "rope.",
    "suspend.",
    "vram.",
    "constrained.jump_min_run",
    "grammar.max_states",
    "runtime.deterministic_gemm",
    "runtime.graph_prewarm",
    "runtime.decode_burst",
    "runtime.prefill_chunk_decode_cap",
    "runtime.prefill_cap_fairness",
    "runtime.prefill_batch_decode_cap",
    "runtime.prefill_batch",
    "runtime.prefill_mixed_decode",
    "runtime.prefill_overlap",
    "runtime.hybrid_decode_quantum",
    "runtime.vision_max_patches",
    "kv_cache.growable",
    "kv_cache.growable_initial_pct",
    "kv_cache.swa_sizing",
    "kv_cache.swa_snapshot_mb",
    "server.model_swap",
    "server.model_swap_drain_ms",
    "server.recurrent_snapshot_host_mb",
    "server.snapshot_min_prompt_tokens",
    "server.transcript_snapshot",
    "server.green_contexts",
    "speculative.draft_ctx_cap",
    "speculative.shallow_draft_ctx",
    "speculative.min_history",
    "speculative.batch_rr",
    "speculative.token_recycling",
    "speculative.recycle_slots",
    "speculative.ngram_corpus",
    "speculative.mtp_k",
})  # fmt: skip

# Flags of the original that mean nothing here -> whether a value follows.
NO_EFFECT_FLAGS: dict[str, bool] = {
    "--gpu-layers": True,
    "--ssm-fp16": False,
    "--decode-nvfp4": False,
    "--decode-nvfp4-only": False,
    "--no-nvfp4": False,
    "--mxfp4-prefill": False,
    "--dual-path-quant": False,
    "--max-images-per-request": True,
    "--http-keep-alive-max": True,
}

# Flags whose silent loss would hurt: refused, with what to do instead.
REFUSED_FLAGS: dict[str, tuple[bool, str]] = {
    "--mmproj": (True, "images aren't supported yet; leave --mmproj out"),
    "--allow-remote-images": (False, "images aren't supported yet; leave --allow-remote-images out"),
}

# Knobs that the configuration already has and no code reads yet: setting one is answered with a line. Whoever
# reads a knob takes it out; a test finds what was forgotten.
NOT_YET: frozenset[str] = frozenset({
    "engine.deterministic",
    "engine.overlap",
    "cuda.device",
    "cuda.graphs",
    "cuda.memory_mib",
    "cuda.memory_fraction",
    "adapters.max_loaded",
})  # fmt: skip
