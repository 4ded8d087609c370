"""llama-server's own command line and environment, flag by flag: served, without effect, or refused with a reason.

`without effect` is said only where neither an answer nor a limit could differ. docs/llama-server.md shows this table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from imp_server.config.adapters import LORA_FLAGS, of_llama_server_flags
from imp_server.core import ConfigError

Verdict = Literal["served", "no effect", "refused"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag under all its names. `off` are the names that switch it off."""

    names: tuple[str, ...]
    verdict: Verdict
    knob: str = ""
    """Ours that it sets."""
    why: str = ""
    env: str = ""
    n_values: int = 1
    off: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    """Values of theirs that are spelled otherwise here."""
    only: tuple[str, ...] = ()
    """The only values that are served."""
    but: tuple[str, ...] = ()
    """Values that aren't served."""
    harmless: tuple[str, ...] = ()
    """Values of a refused flag that ask for nothing."""


def _served(names: str, knob: str, env: str = "", **more: object) -> Flag:
    return _flag(names, "served", env, knob=knob, **more)


def _silent(names: str, why: str, env: str = "", **more: object) -> Flag:
    return _flag(names, "no effect", env, why=why, **more)


def _refused(names: str, why: str, env: str = "", **more: object) -> Flag:
    return _flag(names, "refused", env, why=why, **more)


def _flag(names: str, verdict: Verdict, env: str, **more: object) -> Flag:
    off = str(more.pop("off", ""))
    variable = f"LLAMA_ARG_{env}" if env and not env.startswith(("LLAMA_", "HF_", "MTMD_")) else env
    return Flag(tuple(names.split()), verdict, env=variable, off=tuple(off.split()), **more)  # type: ignore[arg-type]


_PLACE = "where and how weights are computed is imp's own choice; the answers are the same"
_SPEED = "it tunes speed in that server; imp measures its own"
_LOOKS = "how lines of the log look"
_DRAFTS = "drafts never change an answer; imp decides from measured costs"
_IMAGES = "images aren't supported yet"
_MODEL = "it would change what the model computes; imp takes the file's own values"
_BY_REQUEST = "imp has no default of it for the whole server: send it in the request"
_NEVER = "a shell, files and a fetcher don't belong in a model server"
_REMOVED = "that server has removed it as well"
_DOWNLOADS = "name the model: -hf ORG/REPO:QUANTISATION"
_ZERO = ("0", "0.0", "0.00")

FLAGS: tuple[Flag, ...] = (
    # the model
    _served("-m --model", "model.path", "MODEL"),
    _refused("-mu --model-url", "fetch the file, or use -hf", "MODEL_URL"),
    _refused("-dr --docker-repo", "use -hf", "DOCKER_REPO"),
    _served("-hf -hfr --hf-repo", "model.path", "LLAMA_ARG_HF_REPO", why="as hf:ORG/REPO:QUANTISATION"),
    _served("-hff --hf-file", "model.path", "LLAMA_ARG_HF_FILE", why="with -hf"),
    _served("-hft --hf-token", "HF_TOKEN", "HF_TOKEN"),
    _served("--offline", "HF_HUB_OFFLINE", "OFFLINE", n_values=0),
    _served("-a --alias", "model.alias", "ALIAS"),
    _served("--tags", "model.tags", "TAGS"),
    _served("--models-dir", "router.models_dir", "MODELS_DIR"),
    _served("--models-preset", "router.models_preset", "MODELS_PRESET"),
    _served("--models-max", "router.models_max", "MODELS_MAX"),
    _served("--models-autoload", "router.models_autoload", "MODELS_AUTOLOAD", n_values=0, off="--no-models-autoload"),
    _served("--sleep-idle-seconds", "engine.idle_unload_s"),
    _served("-c --ctx-size", "model.max_seq_len", "CTX_SIZE"),
    _refused("--check-tensors", "imp doesn't look at every number of a file when it loads", n_values=0),
    _refused("--override-kv", _MODEL),
    _refused("--rope-scaling", _MODEL, "ROPE_SCALING_TYPE"),
    _refused("--rope-scale", _MODEL, "ROPE_SCALE"),
    _refused("--rope-freq-base", _MODEL, "ROPE_FREQ_BASE", harmless=_ZERO),
    _refused("--rope-freq-scale", _MODEL, "ROPE_FREQ_SCALE", harmless=_ZERO),
    _refused("--yarn-orig-ctx", _MODEL, "YARN_ORIG_CTX", harmless=_ZERO),
    _refused("--yarn-ext-factor", _MODEL, "YARN_EXT_FACTOR", harmless=("-1", "-1.0")),
    _refused("--yarn-attn-factor", _MODEL, "YARN_ATTN_FACTOR", harmless=("-1", "-1.0")),
    _refused("--yarn-beta-slow", _MODEL, "YARN_BETA_SLOW", harmless=("-1", "-1.0")),
    _refused("--yarn-beta-fast", _MODEL, "YARN_BETA_FAST", harmless=("-1", "-1.0")),
    _served("--lora", "adapters.lora_scaled", why="with a scale of 1"),
    _served("--lora-scaled", "adapters.lora_scaled"),
    _served("--lora-init-without-apply", "adapters.init_without_apply", n_values=0),
    _refused("--control-vector", "control vectors aren't supported"),
    _refused("--control-vector-scaled", "control vectors aren't supported"),
    _silent("--control-vector-layer-range", "there are no control vectors", n_values=2),
    _refused("-mm --mmproj", _IMAGES, "MMPROJ"),
    _refused("-mmu --mmproj-url", _IMAGES, "MMPROJ_URL"),
    _silent("--mmproj-auto", _IMAGES, "MMPROJ_AUTO", n_values=0, off="--no-mmproj --no-mmproj-auto"),
    _silent("--mmproj-offload", _IMAGES, "MMPROJ_OFFLOAD", n_values=0, off="--no-mmproj-offload"),
    _silent("-mmdev --mmproj-device", _IMAGES, "MTMD_BACKEND_DEVICE"),
    _silent("--image-min-tokens", _IMAGES, "IMAGE_MIN_TOKENS"),
    _silent("--image-max-tokens", _IMAGES, "IMAGE_MAX_TOKENS"),
    _silent("--mtmd-batch-max-tokens", _IMAGES, "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"),
    _silent("--video-fps", _IMAGES, "VIDEO_FPS"),
    _silent("--video-timestamp-interval", _IMAGES, "VIDEO_TIMESTAMP_INTERVAL"),
    _silent("--video-ffmpeg-dir", _IMAGES, "VIDEO_FFMPEG_DIR"),
    # where it runs
    _served("-t --threads", "cpu.threads", "THREADS", words=(("-1", "0"),)),
    _silent("-tb --threads-batch", _SPEED),
    _silent("-C --cpu-mask", "taskset limits imp to some cores, and it keeps to them"),
    _silent("-Cr --cpu-range", "taskset limits imp to some cores, and it keeps to them"),
    _silent("--cpu-strict", _SPEED),
    _silent("--prio", "nice sets the priority of a process"),
    _silent("--poll", _SPEED),
    _silent("-Cb --cpu-mask-batch", _SPEED),
    _silent("-Crb --cpu-range-batch", _SPEED),
    _silent("--cpu-strict-batch", _SPEED),
    _silent("--prio-batch", _SPEED),
    _silent("--poll-batch", _SPEED),
    _silent("-b --batch-size", _SPEED, "BATCH"),
    _silent("-ub --ubatch-size", _SPEED, "UBATCH"),
    _silent("-fa --flash-attn", _PLACE, "FLASH_ATTN"),
    _silent("--perf", _SPEED, "PERF", n_values=0, off="--no-perf"),
    _silent("-kvo --kv-offload", _PLACE, "KV_OFFLOAD", n_values=0, off="-nkvo --no-kv-offload"),
    _silent("--repack", _PLACE, "REPACK", n_values=0, off="-nr --no-repack"),
    _silent("--no-host", _PLACE, "NO_HOST", n_values=0),
    _silent("-lm --load-mode", _PLACE, "LOAD_MODE"),
    _silent("-lzm --lazy-mode", _PLACE, "LAZY_MODE"),
    _silent("--numa", _SPEED, "NUMA"),
    _silent("-dev --device", "imp takes the number of a GPU: --cuda-device", "DEVICE"),
    _silent("-ot --override-tensor", _PLACE, "OVERRIDE_TENSOR"),
    _silent("-cmoe --cpu-moe", _PLACE, "CPU_MOE", n_values=0),
    _silent("-ncmoe --n-cpu-moe", _PLACE, "N_CPU_MOE"),
    _silent("-ncffn --n-cpu-ffn", _PLACE, "N_CPU_FFN"),
    _silent("-ngl --gpu-layers --n-gpu-layers", "a model is whole where its backend is", "N_GPU_LAYERS"),
    _silent("-sm --split-mode", "one GPU runs the whole model", "SPLIT_MODE"),
    _silent("-ts --tensor-split", "one GPU runs the whole model", "TENSOR_SPLIT"),
    _silent("-mg --main-gpu", "one GPU runs the whole model", "MAIN_GPU"),
    _silent("-fit --fit", "imp always fits its cache to what memory is free", "FIT"),
    _silent("-fitt --fit-target", "--cuda-memory-mib says how much of a GPU may be used", "FIT_TARGET"),
    _served("-fitc --fit-ctx", "kv_cache.min_tokens", "FIT_CTX"),
    _silent("--op-offload", _PLACE, n_values=0, off="--no-op-offload"),
    _refused("--rpc", "imp runs on one machine", "RPC"),
    _served("--warmup", "engine.warmup", n_values=0, off="--no-warmup"),
    # cache and rows
    _served(
        "-ctk --cache-type-k",
        "kv_cache.dtype",
        "CACHE_TYPE_K",
        words=(("q8_0", "int8"), ("f16", "auto")),
        only=("f32", "f16", "bf16", "q8_0"),
        why="keys and values have one type; f16 is the backend's own 16 bits",
    ),
    _served(
        "-ctv --cache-type-v",
        "kv_cache.dtype",
        "CACHE_TYPE_V",
        words=(("q8_0", "int8"), ("f16", "auto")),
        only=("f32", "f16", "bf16", "q8_0"),
        why="keys and values have one type; f16 is the backend's own 16 bits",
    ),
    _silent("-dt --defrag-thold", "blocks needn't be side by side", "DEFRAG_THOLD"),
    _silent("--swa-full", "what is reused of a window is decided by what is there", "SWA_FULL", n_values=0),
    _served("-np --parallel", "scheduler.max_rows", "N_PARALLEL", words=(("-1", "0"),)),
    _served("--kv-unified-per-slot", "model.max_seq_len", "KV_UNIFIED_PER_SLOT"),
    _served("-kvu --kv-unified", "model.max_seq_len", "KV_UNIFIED", n_values=0, off="-no-kvu --no-kv-unified",
            why="a row may hold all of -c; without it, and with -np N, an Nth of it"),
    _served("-ctxcp --ctx-checkpoints --swa-checkpoints", "prefix_cache.max_snapshots", "CTX_CHECKPOINTS"),
    _served("-cms --checkpoint-min-step", "prefix_cache.checkpoint_min_step", "CHECKPOINT_MIN_SPACING_NT"),
    _served("-cram --cache-ram", "kv_cache.host_spill_mib", "CACHE_RAM", words=(("-1", "1048576"),)),
    _silent("--cache-idle-slots", "idle rows leave their blocks in the prefix cache", "CACHE_IDLE_SLOTS", n_values=0,
            off="--no-cache-idle-slots"),
    _served("--cache-prompt", "prefix_cache.enabled", "CACHE_PROMPT", n_values=0, off="--no-cache-prompt"),
    _silent("--cache-reuse", "exact prefixes are reused, wherever they stand", "CACHE_REUSE"),
    _silent("-cb --cont-batching", "rows join and leave at every step", "CONT_BATCHING", n_values=0,
            off="-nocb --no-cont-batching"),
    _silent("-sps --slot-prompt-similarity", "a prompt finds its prefix in any row's blocks"),
    _served("--context-shift", "model.context_shift", "CONTEXT_SHIFT", n_values=0, off="--no-context-shift"),
    _served("--keep", "model.keep_tokens", why="of requests that send no n_keep"),
    _served("--slot-save-path", "prefix_cache.slots_path"),
    # what is sampled
    _served("-n --predict --n-predict", "server.max_tokens server.most_tokens", "N_PREDICT",
            words=(("-1", "1000000000"),), why="a request may ask for less"),
    _served("--temp --temperature", "sampling.temperature", "TEMPERATURE"),
    _served("--top-k", "sampling.top_k", "TOP_K"),
    _served("--top-p", "sampling.top_p", "TOP_P"),
    _served("--min-p", "sampling.min_p", "MIN_P"),
    _served("--typical --typical-p", "sampling.typical_p"),
    _served("--repeat-penalty", "sampling.repetition_penalty", "REPEAT_PENALTY"),
    _served("--presence-penalty", "sampling.presence_penalty", "PRESENCE_PENALTY"),
    _served("--frequency-penalty", "sampling.frequency_penalty", "FREQUENCY_PENALTY"),
    _refused("--samplers", "their order is fixed",
             harmless=("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",)),
    _refused("--sampler-seq --sampling-seq", "their order is fixed", harmless=("edskypmxt",)),
    _served("-s --seed", "sampling.seed", why="of requests that send none"),
    _refused("--ignore-eos", _BY_REQUEST, n_values=0),
    _served("--top-nsigma --top-n-sigma", "sampling.top_n_sigma"),
    _served("--xtc-probability", "sampling.xtc_probability"),
    _served("--xtc-threshold", "sampling.xtc_threshold"),
    _served("--repeat-last-n", "sampling.repeat_last_n", words=(("-1", "0"),), but=("0",),
            why="-1 is all of the answer; 0, no penalties, is --repeat-penalty 1"),
    _served("--dry-multiplier", "sampling.dry_multiplier"),
    _served("--dry-base", "sampling.dry_base"),
    _served("--dry-allowed-length", "sampling.dry_allowed_length"),
    _served("--dry-penalty-last-n", "sampling.dry_penalty_last_n", words=(("-1", "0"),), but=("0",),
            why="-1 is all; 0, no penalty, is --dry-multiplier 0"),
    _refused("--dry-sequence-breaker", _BY_REQUEST),
    _refused("--adaptive-target", "adaptive-p isn't supported", harmless=("-1", "-1.0", "-1.00")),
    _silent("--adaptive-decay", "adaptive-p isn't supported"),
    _served("--dynatemp-range", "sampling.dynatemp_range"),
    _served("--dynatemp-exp", "sampling.dynatemp_exponent"),
    _served("--mirostat", "sampling.mirostat"),
    _served("--mirostat-lr", "sampling.mirostat_eta"),
    _served("--mirostat-ent", "sampling.mirostat_tau"),
    _refused("-l --logit-bias", _BY_REQUEST),
    _refused("--grammar", _BY_REQUEST),
    _refused("--grammar-file", _BY_REQUEST),
    _refused("-j --json-schema", _BY_REQUEST),
    _refused("-jf --json-schema-file", _BY_REQUEST),
    _refused("-r --reverse-prompt", _BY_REQUEST + " as stop"),
    _silent("-bs --backend-sampling", _PLACE, "BACKEND_SAMPLING", n_values=0),
    _refused("-sp --special", "special tokens never stand in an answer's text", n_values=0),
    _silent("-e --escape", "no flag that is served has escapes", n_values=0, off="--no-escape"),
    # templates and thinking
    _served("--jinja", "server.tools", "JINJA", n_values=0, off="--no-jinja",
            why="templates are always rendered; without it requests with tools are refused, as there"),
    _served("--chat-template", "model.chat_template", "CHAT_TEMPLATE", why="a name of theirs, or Jinja itself"),
    _served("--chat-template-file", "model.chat_template", "CHAT_TEMPLATE_FILE"),
    _served("--chat-template-kwargs", "model.chat_template_kwargs", "CHAT_TEMPLATE_KWARGS"),
    _refused("--skip-chat-parsing", "imp always reads calls and thinking", "SKIP_CHAT_PARSING", n_values=0),
    _silent("--no-skip-chat-parsing", "imp always reads calls and thinking", n_values=0),
    _served("--reasoning-format", "reasoning.format", "THINK", words=(("auto", "deepseek"),),
            only=("none", "deepseek", "deepseek-legacy", "auto")),
    _served("-rea --reasoning", "reasoning.think_budget", "REASONING",
            words=(("off", "0"), ("on", ""), ("auto", "")), only=("on", "off", "auto")),
    _served("--reasoning-effort", "model.chat_template_kwargs", "REASONING_EFFORT", why="as its reasoning_effort"),
    _served("--reasoning-budget", "reasoning.budget_tokens", "THINK_BUDGET"),
    _served("--reasoning-budget-message", "reasoning.budget_message", "THINK_BUDGET_MESSAGE"),
    _silent("--reasoning-preserve", "what a client sends of earlier thinking is up to the template",
            "REASONING_PRESERVE", n_values=0),
    _refused("--no-reasoning-preserve", "what a client sends of earlier thinking is up to the template", n_values=0),
    _served("--prefill-assistant", "server.prefill_assistant", "PREFILL_ASSISTANT", n_values=0,
            off="--no-prefill-assistant"),
    _refused("--spm-infill", "the model's own tokens say how a gap is filled", n_values=0),
    # the server
    _served("--host", "server.host", "HOST", why="PATH.sock is unix:PATH.sock here"),
    _served("--port", "server.port", "PORT"),
    _refused("--reuse-port", "one process listens on a port", "REUSE_PORT", n_values=0),
    _refused("--path", "imp serves no files", "STATIC_PATH"),
    _served("--api-prefix", "server.api_prefix", "API_PREFIX"),
    _served("--api-key", "server.api_key", "LLAMA_API_KEY"),
    _served("--api-key-file", "server.api_key_file", "API_KEY_FILE"),
    _served("--ssl-key-file", "server.ssl_keyfile", "SSL_KEY_FILE"),
    _served("--ssl-cert-file", "server.ssl_certfile", "SSL_CERT_FILE"),
    _served("--cors-origins", "server.cors_origins", "CORS_ORIGINS"),
    _served("--cors-methods", "server.cors_methods", "CORS_METHODS"),
    _served("--cors-headers", "server.cors_headers", "CORS_HEADERS"),
    _served("--cors-credentials", "server.cors_credentials", "CORS_CREDENTIALS", n_values=0,
            off="--no-cors-credentials", words=(("true", "on"), ("false", "off"))),
    _served("-to --timeout", "server.send_timeout_s server.body_timeout_s", "TIMEOUT"),
    _served("--sse-ping-interval", "streams.keep_alive_s", "SSE_PING_INTERVAL", words=(("-1", "0"),)),
    _silent("--threads-http", _SPEED, "THREADS_HTTP"),
    _served("--metrics", "metrics.enabled", "ENDPOINT_METRICS", n_values=0),
    _served("--props", "server.props", "ENDPOINT_PROPS", n_values=0, why="nothing can be changed through it yet"),
    _served("--slots", "server.slots", "ENDPOINT_SLOTS", n_values=0, off="--no-slots"),
    _refused("--media-path", _IMAGES),
    _served("--embd-normalize", "server.embd_normalize"),
    _served("--pooling", "model.pooling", "POOLING", but=("cls", "rank"),
            why="none, mean, last; left out, the model's own, of a decoder that doesn't say the last; cls "
                "and rank are of encoders, which come later"),
    _served("--embedding --embeddings", "server.only_embeddings", "EMBEDDINGS", n_values=0,
            why="without it embeddings are served beside the rest"),
    _refused("--rerank --reranking", "no model that ranks can be served yet", "RERANKING", n_values=0),
    _served("--ui --webui", "server.ui", "UI", n_values=0, off="--no-ui --no-webui"),
    _silent("--ui-config --webui-config", "the page has no settings", "UI_CONFIG"),
    _silent("--ui-config-file --webui-config-file", "the page has no settings", "UI_CONFIG_FILE"),
    _refused("--ui-mcp-proxy --webui-mcp-proxy", _NEVER, "UI_MCP_PROXY", n_values=0),
    _silent("--no-ui-mcp-proxy --no-webui-mcp-proxy", _NEVER, n_values=0),
    _refused("--tools", _NEVER, "TOOLS"),
    _refused("--tools-runtime", _NEVER, "TOOLS_RUNTIME"),
    _refused("--mcp-servers-config", _NEVER, "MCP_SERVERS_CONFIG"),
    _refused("--mcp-servers-json", _NEVER, "MCP_SERVERS_JSON"),
    _refused("-ag --agent", _NEVER, "AGENT", n_values=0),
    _silent("-no-ag --no-agent", _NEVER, n_values=0),
    # the log
    _served("--log-disable", "log.level=error", n_values=0),
    _refused("--log-file", "send stderr to a file", "LOG_FILE"),
    _served("--log-jsonl", "log.format=json", "LOG_JSONL", n_values=0),
    _silent("--no-log-jsonl", _LOOKS, n_values=0),
    _silent("--log-colors", _LOOKS, "LOG_COLORS"),
    _served("-v --verbose --log-verbose", "log.level=debug server.verbose_replies=true", n_values=0),
    _served("-lv --verbosity --log-verbosity", "log.level", "LOG_VERBOSITY",
            words=(("0", "error"), ("1", "error"), ("2", "warning"), ("3", "info"), ("4", "debug"), ("5", "debug")),
            only=("0", "1", "2", "3", "4", "5")),
    _silent("--log-prefix", _LOOKS, "LOG_PREFIX", n_values=0, off="--no-log-prefix"),
    _silent("--log-timestamps", _LOOKS, "LOG_TIMESTAMPS", n_values=0, off="--no-log-timestamps"),
    _served("--log-prompts-dir", "log.prompts_dir"),
    # drafts
    _served("--spec-type", "speculative.drafters", "SPEC_TYPE", why="none, draft-simple, n-gram types (all `ngram`)"),
    _silent("--spec-default", "drafts that pay are on", n_values=0),
    _served("--spec-draft-model -md --model-draft", "speculative.draft_model", "SPEC_DRAFT_MODEL",
            why="drafts with --spec-type draft-simple only"),
    _served("--spec-draft-hf -hfd -hfrd --hf-repo-draft", "speculative.draft_model", "SPEC_DRAFT_HF_REPO",
            why="as hf:ORG/REPO:QUANTISATION; drafts with --spec-type draft-simple only"),
    _served("--spec-draft-n-max", "speculative.draft_max", "SPEC_DRAFT_N_MAX"),
    _silent("--spec-draft-n-min", _DRAFTS, "SPEC_DRAFT_N_MIN"),
    _served("--spec-draft-p-min --draft-p-min", "speculative.draft_p_min", "SPEC_DRAFT_P_MIN"),
    _silent("--spec-draft-p-split --draft-p-split", _DRAFTS, "SPEC_DRAFT_P_SPLIT"),
    _silent("--spec-draft-threads -td --threads-draft", _DRAFTS),
    _silent("--spec-draft-threads-batch -tbd --threads-batch-draft", _DRAFTS),
    _silent("--spec-draft-cpu-mask -Cd --cpu-mask-draft", _DRAFTS),
    _silent("--spec-draft-cpu-range -Crd --cpu-range-draft", _DRAFTS),
    _silent("--spec-draft-cpu-strict --cpu-strict-draft", _DRAFTS),
    _silent("--spec-draft-prio --prio-draft", _DRAFTS),
    _silent("--spec-draft-poll --poll-draft", _DRAFTS),
    _silent("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", _DRAFTS),
    _silent("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft", _DRAFTS),
    _silent("--spec-draft-prio-batch --prio-batch-draft", _DRAFTS),
    _silent("--spec-draft-poll-batch --poll-batch-draft", _DRAFTS),
    _silent("--spec-draft-override-tensor -otd --override-tensor-draft", _DRAFTS),
    _silent("--spec-draft-cpu-moe -cmoed --cpu-moe-draft", _DRAFTS, "SPEC_DRAFT_CPU_MOE", n_values=0),
    _silent("--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft", _DRAFTS, "SPEC_DRAFT_N_CPU_MOE"),
    _silent("--spec-draft-type-k -ctkd --cache-type-k-draft", _DRAFTS, "SPEC_DRAFT_CACHE_TYPE_K"),
    _silent("--spec-draft-type-v -ctvd --cache-type-v-draft", _DRAFTS, "SPEC_DRAFT_CACHE_TYPE_V"),
    _silent("--spec-draft-backend-sampling", _DRAFTS, "SPEC_DRAFT_BACKEND_SAMPLING", n_values=0,
            off="--no-spec-draft-backend-sampling"),
    _silent("--spec-draft-device -devd --device-draft", _DRAFTS),
    _silent("--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft", _DRAFTS, "N_GPU_LAYERS_DRAFT"),
    _silent("-lcs --lookup-cache-static", _DRAFTS),
    _silent("-lcd --lookup-cache-dynamic", _DRAFTS),
    _refused("--spec-synth-len", "acceptance is never made up", "SPEC_SYNTH_LEN"),
    _refused("--spec-synth-rates", "acceptance is never made up", "SPEC_SYNTH_RATES"),
    *(
        _silent(f"--spec-ngram-{name}", _DRAFTS)
        for name in (
            "mod-n-min", "mod-n-max", "mod-n-match", "simple-size-n", "simple-size-m", "simple-min-hits",
            "map-k-size-n", "map-k-size-m", "map-k-min-hits", "map-k4v-size-n", "map-k4v-size-m", "map-k4v-min-hits",
        )
    ),
    _refused("--draft --draft-n --draft-max", _REMOVED, "DRAFT_MAX"),
    _refused("--draft-min --draft-n-min", _REMOVED, "DRAFT_MIN"),
    _refused("--spec-ngram-size-n", _REMOVED),
    _refused("--spec-ngram-size-m", _REMOVED),
    _refused("--spec-ngram-min-hits", _REMOVED),
    *(
        _refused(f"--{name}", _DOWNLOADS, n_values=0)
        for name in (
            "embd-gemma-default", "fim-qwen-1.5b-default", "fim-qwen-3b-default", "fim-qwen-7b-default",
            "fim-qwen-7b-spec", "fim-qwen-14b-spec", "fim-qwen-30b-default", "gpt-oss-20b-default",
            "gpt-oss-120b-default", "vision-gemma-4b-default", "vision-gemma-12b-default",
        )
    ),
    # what prints and ends
    _served("-h --help --usage", "--help", n_values=0),
    _served("--version", "--version", n_values=0),
    _served("-cl --cache-list", "imp ls", n_values=0),
    _served("--list-devices", "imp doctor", n_values=0),
    _refused("--completion-bash", "imp completion bash has it for imp's own commands", n_values=0),
)  # fmt: skip

PRINTS = {"-h": "--help", "--help": "--help", "--usage": "--help", "--version": "--version", "-cl": "ls",
          "--cache-list": "ls", "--list-devices": "doctor"}  # fmt: skip
"""Flags after which there is no server -> the command of ours that prints the like."""

HABITS: dict[str, str] = {
    "server.habits": "llama-server",
    "server.model_names": "any",
    "server.prefill_assistant": "true",
    "server.max_n_probs": "1000",
    "metrics.enabled": "false",
    "server.cors_origins": "*",
    "server.cors_methods": "GET, POST, DELETE, OPTIONS",
    "server.cors_headers": "*",
    "server.cors_credentials": "on",
    "server.max_tokens": "1000000000",
    "server.request_timeout_s": "0",
    "server.max_concurrent": "0",
    "sampling.temperature": "0.8",
    "sampling.top_k": "40",
    "sampling.top_p": "0.95",
    "sampling.min_p": "0.05",
    "sampling.repetition_penalty": "1",
    "sampling.repeat_last_n": "64",
    "sampling.dry_penalty_last_n": "64",
    "reasoning.think_budget": "1",
    "reasoning.beside_tools": "true",
    "streams.keep_alive_s": "30",
}
"""What that server does by default and imp doesn't: weaker than whatever is asked for."""

_NGRAM = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
_TRUE, _FALSE = ("1", "true", "on", "enabled"), ("0", "false", "off", "disabled")


@dataclass(slots=True)
class Translated:
    """`knobs`: key -> text. `variables`: what is put into the environment. `notes`: flags without effect, and why."""

    knobs: dict[str, str]
    variables: dict[str, str]
    notes: list[str]


_BY_SEVERAL = {"-hf", "-hff", *LORA_FLAGS, "--spec-type", "-kvu", "--reasoning-effort", *PRINTS}
"""Flags whose knobs depend on others, too, or that have none."""


@dataclass(slots=True)
class _Given:
    flag: Flag
    name: str
    values: list[str]
    is_on: bool = True


def translated(arguments: Sequence[str], variables: Mapping[str, str]) -> Translated:
    """What that command line and environment ask for, in imp's knobs; the command line wins.

    Raises ConfigError for a flag that is unknown or refused, or a value that isn't served.
    """
    found = Translated({}, {}, list(_unknown(variables)))
    given = [*_from_variables(variables), *_from_arguments(arguments)]
    for one in given:
        _apply(one, found)
    _one_cache_type(given)
    texts = {one.flag.names[0]: one.values[0] for one in given if one.values}
    _name_model(texts, found)
    if files := [(one.flag.names[0], one.values[0]) for one in given if one.flag.names[0] in LORA_FLAGS]:
        found.knobs["adapters.lora_scaled"] = of_llama_server_flags(files)
    _choose_drafters(texts, found)
    _choose_effort(texts, found)
    _divide_context(texts, found, is_shared=[one.is_on for one in given if one.flag.names[0] == "-kvu"][-1:] == [True])
    return found


def of_llama_server(entries: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """A section of that server's preset file: what its flags ask for, by our knobs, beside what are ours already; and
    the repositories that it names. Raises ConfigError as `translated`."""
    known, ours, arguments = flags_by_name(), dict[str, str](), list[str]()
    by_variable = {flag.env: flag for flag in FLAGS if flag.env}
    repositories: list[str] = []
    for key, text in entries.items():
        bare = key.lstrip("-")
        name = next((word for word in (f"-{bare}", f"--{bare}") if word in known), "")
        flag = by_variable.get(key) or (known[name][0] if name else None)
        if flag is None:
            ours[key] = text
            continue
        if flag.names[0] in ("-hf", "--spec-draft-hf"):
            repositories.append(text)
        if flag.n_values:
            arguments += [name or flag.names[0], text]
        elif text.lower() not in _FALSE:
            arguments.append(name or flag.names[0])
        elif flag.off:
            arguments.append(flag.off[0])
    return ours | translated(arguments, {}).knobs, repositories


def flags_by_name() -> dict[str, tuple[Flag, bool]]:
    """Every spelling -> (the flag, whether it switches it on)."""
    on = {name: (flag, True) for flag in FLAGS for name in flag.names}
    return on | {name: (flag, False) for flag in FLAGS for name in flag.off}


def _from_arguments(arguments: Sequence[str]) -> Iterator[_Given]:
    known = flags_by_name()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name = word.replace("_", "-") if word.startswith("--") else word
        if name not in known:
            raise ConfigError(f"{word} is no option of llama-server that imp knows; docs/llama-server.md lists them")
        flag, is_on = known[name]
        n_values = flag.n_values if is_on else 0
        if len(rest) < n_values:
            raise ConfigError(f"{word} wants {'a value' if n_values == 1 else f'{n_values} values'}")
        if taken := [value for value in rest[:n_values] if value in known]:
            raise ConfigError(f"{word} wants {'a value' if n_values == 1 else f'{n_values} values'} before {taken[0]}")
        yield _Given(flag, name, [rest.pop(0) for _ in range(n_values)], is_on)


def _from_variables(variables: Mapping[str, str]) -> Iterator[_Given]:
    for flag in FLAGS:
        if not flag.env:
            continue
        value = variables.get(flag.env, "")
        if value and flag.n_values:
            yield _Given(flag, flag.env, [value])
        elif value.lower() in _TRUE:
            yield _Given(flag, flag.env, [])
        elif value and value.lower() not in _FALSE:
            raise ConfigError(f"{flag.env}={value} isn't valid: it can be {', '.join((*_TRUE, *_FALSE))}")
        elif (value or variables.get(flag.env.replace("ARG_", "ARG_NO_"))) and flag.off:
            yield _Given(flag, flag.env, [], is_on=False)


def _unknown(variables: Mapping[str, str]) -> Iterator[str]:
    """What is said of variables that look like that server's and aren't."""
    known = {flag.env for flag in FLAGS} | {flag.env.replace("ARG_", "ARG_NO_") for flag in FLAGS if flag.off}
    for name in sorted(variables):
        if name.startswith("LLAMA_ARG_") and name not in known:
            yield f"{name} has no effect here: llama-server has no such variable"


def _apply(given: _Given, found: Translated) -> None:
    flag, name = given.flag, given.name
    value = given.values[0] if given.values else ""
    if flag.verdict == "refused" and value not in flag.harmless:
        raise ConfigError(f"{name} isn't served: {flag.why}")
    if flag.verdict == "no effect":
        found.notes.append(f"{name} has no effect here: {flag.why}")
    if flag.verdict != "served" or flag.names[0] in _BY_SEVERAL:
        return
    if flag.only and value not in flag.only:
        more = f"; {flag.why}" if flag.why else ""
        raise ConfigError(f"{name} {value} isn't served: it can be {', '.join(flag.only)}{more}")
    if value and value in flag.but:
        raise ConfigError(f"{name} {value} isn't served: {flag.why}")
    if not flag.n_values:
        value = "true" if given.is_on else "false"
    text = dict(flag.words).get(value, value)
    if flag.knob.isupper():
        found.variables[flag.knob] = "1" if not flag.n_values else value
        return
    for target in flag.knob.split() if text else ():
        key, _, fixed = target.partition("=")
        found.knobs[key] = fixed or _respelled(flag, text)


def _respelled(flag: Flag, text: str) -> str:
    if flag.knob == "server.host":
        return ",".join(f"unix:{one}" if one.endswith(".sock") else one for one in text.split(","))
    if flag.knob == "model.alias":  # there the first in the order of letters is the id
        return ",".join(sorted(filter(None, (name.strip() for name in text.split(",")))))
    if flag.names[0] == "--spec-draft-hf":
        return f"hf:{text}"
    if flag.names[0] == "--chat-template" and any(c.isspace() for c in text) and "{" not in text:
        return "{##}" + text  # no name has blanks, and there it names no file: Jinja without expressions
    return text


def _one_cache_type(given: Sequence[_Given]) -> None:
    types = {one.values[0] for one in given if one.flag.knob == "kv_cache.dtype"}
    if len(types) > 1:
        raise ConfigError(f"keys and values have one type here, and {' and '.join(sorted(types))} were asked for")


def _name_model(given: Mapping[str, str], found: Translated) -> None:
    repository, file = given.get("-hf", ""), given.get("-hff", "")
    if file and not repository:
        raise ConfigError("-hff names a file of a repository: give that with -hf")
    if repository:
        name = repository.partition(":")[0] + f":{file}" if file else repository
        found.knobs["model.path"] = f"hf:{name}"


def _choose_drafters(given: Mapping[str, str], found: Translated) -> None:
    """There a draft model alone doesn't draft; its type has to be asked for."""
    asked = [kind for kind in given.get("--spec-type", "").split(",") if kind and kind != "none"]
    if unknown := [kind for kind in asked if kind not in (*_NGRAM, "draft-simple")]:
        raise ConfigError(f"--spec-type {unknown[0]} isn't served: it can be none, draft-simple, {', '.join(_NGRAM)}")
    drafters = ["forced"] + ["ngram"] * bool(set(asked) & set(_NGRAM)) + ["model"] * ("draft-simple" in asked)
    if "draft-simple" not in asked:
        found.knobs.pop("speculative.draft_model", None)
    if "--spec-type" in given:
        found.knobs["speculative.drafters"] = ",".join(drafters)
    if asked:  # there whoever asks for drafts gets them, whether or not they pay
        found.knobs |= {"speculative.enabled": "on", "speculative.cost_gate": "false"}


def _choose_effort(given: Mapping[str, str], found: Translated) -> None:
    effort = given.get("--reasoning-effort", "default")
    if effort == "default":
        return
    try:
        variables = json.loads(found.knobs.get("model.chat_template_kwargs", "{}"))
    except ValueError:
        return  # which is told when they are used
    if isinstance(variables, dict):
        found.knobs["model.chat_template_kwargs"] = json.dumps({"reasoning_effort": effort, **variables})


def _divide_context(given: Mapping[str, str], found: Translated, *, is_shared: bool) -> None:
    """There -np N gives each row an Nth of -c, unless rows share one cache; a context of the model's own isn't divided,
    which would leave less than anybody expects."""
    total, rows = (given.get(name, "0") for name in ("-c", "-np"))
    if is_shared or "--kv-unified-per-slot" in given or not (total.isdecimal() and rows.isdecimal()):
        return
    if int(total) and int(rows):
        found.knobs["model.max_seq_len"] = str(max(1, int(total) // int(rows)))
