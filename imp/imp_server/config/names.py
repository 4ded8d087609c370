"""Further names of knobs, flags of other servers that are told of, and knobs that have no effect yet."""

from __future__ import annotations

# Further flags of a knob. The environment name follows the flag (--threads, IMP_THREADS).
OWN_ALIASES: dict[str, str] = {
    "--threads": "cpu.threads",
    "--quantize": "cpu.quantize",
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
    "--models-preset": "router.models_preset",
    "--models-max": "router.models_max",
    "--models-autoload": "router.models_autoload",
    "--sleep-idle-seconds": "engine.idle_unload_s",
    "--drain-seconds": "server.drain_timeout_s",
    "--detached-seconds": "streams.detached_s",
    "--otlp-endpoint": "metrics.otlp_endpoint",
    "--otlp-service-name": "metrics.otlp_service_name",
    "--sse-ping-interval": "streams.keep_alive_s",
}

# What llama.cpp's and vLLM's servers and Ollama call it -> ours, or what to do instead. Not taken, but told of.
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
    "--num-ctx": "--max-seq-len",
    "--num-predict": "--max-tokens",
    "--keepalive": "--idle-unload-seconds N, of imp serve",
    "--keep-alive": "--idle-unload-seconds N, of imp serve",
    "--think": "--think-budget",
    "--hidethinking": "--think-budget 0",
    "--format": "the request: response_format",
    "--nowordwrap": "leave it out: lines are as wide as the terminal",
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
    "-ngl": "leave it out: a model is whole where its backend is (--backend)",
    "--n-gpu-layers": "leave it out: a model is whole where its backend is (--backend)",
    "--tensor-parallel-size": "leave it out: a model is whole where its backend is (--backend)",
    "--gpu-memory-utilization": "leave it out: a model is whole where its backend is (--backend)",
    "-b": "leave it out: steps are sized by what they cost",
    "-ub": "leave it out: steps are sized by what they cost",
    "--batch-size": "leave it out: steps are sized by what they cost",
    "--ubatch-size": "leave it out: steps are sized by what they cost",
    "--max-num-batched-tokens": "leave it out: steps are sized by what they cost",
    "-fa": "leave it out: attention is always computed in one pass",
    "--flash-attn": "leave it out: attention is always computed in one pass",
    "--mlock": "leave it out: weights are packed once, then mapped",
    "--no-mmap": "leave it out: weights are packed once, then mapped",
    "--jinja": "leave it out: templates are always rendered",
    "--chat-template-file": "--chat-template FILE",
    "--override-generation-config": "--temperature",
    "--speculative-config": "--draft-model",
    "--enable-prefix-caching": "leave it out: the prefix cache is on",
    "--cache-reuse": "leave it out: the prefix cache is on",
    "--slot-save-path": "--prefix-cache FOLDER",
    "--metrics": "leave it out: /metrics is there",
    "--embedding": "leave it out: /v1/embeddings is there",
    "--embeddings": "leave it out: /v1/embeddings is there",
    "--task": "leave it out: every model generates and embeds",
    "--guided-decoding-backend": "leave it out: imp's own grammar enforces schemas",
    "--grammar-file": "the request: grammar, regex or response_format",
    "-j": "the request: response_format",
    "--trust-remote-code": "leave it out: no code of a model is run",
    "--dtype": "--quantize",
}

# Flags that stand for one value of a knob.
OWN_VALUE_FLAGS: dict[str, tuple[str, str]] = {
    "--no-prefix-cache": ("prefix_cache.enabled", "false"),
    "--no-overlap": ("engine.overlap", "off"),
}

# What stands for "off" elsewhere, or did here.
OWN_VALUE_ALIASES: dict[tuple[str, str], str] = {
    ("engine.overlap", "true"): "on",
    ("engine.overlap", "false"): "off",
    ("streams.keep_alive_s", "-1"): "0",
    ("engine.idle_unload_s", "-1"): "0",
}

# Knobs that the configuration already has and no code reads yet: setting one is answered with a line. Whoever
# reads a knob takes it out; a test finds what was forgotten.
NOT_YET: frozenset[str] = frozenset()
