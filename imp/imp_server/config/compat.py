"""What became of the flags and keys of imp-server, the server in C++ and CUDA that this one follows.

One table: `docs/config.md` shows it, and what the command line, the environment and the file accept is made of it.
Names that are the same in both servers and mean the same (`--port`, `kv_cache.max_blocks`) need no row.
llama-server's names are in llama_server.py.
"""

from __future__ import annotations

from typing import NamedTuple

from imp_server.config.names import OWN_ALIASES, OWN_VALUE_ALIASES, OWN_VALUE_FLAGS

SPEED = "it tunes speed in CUDA; imp measures its own"
PLANNED = "memory is planned from what is free"
SIZED = "prefill is sized by scheduler.step_ms"
CACHES = "weights have one packed form (cpu.quantize)"
DRAFTS = "drafts never change an answer; imp decides from measured costs"
IMAGES = "images aren't supported yet"


class Former(NamedTuple):
    """A name of theirs. With `ours` it is served; else it has no effect, or is refused."""

    name: str
    """A flag (`--lora`), a key (`runtime.warmup`), or a whole section (`vram.`)."""
    ours: str = ""
    """The key it sets."""
    value: str = ""
    """What a flag without a value sets it to."""
    why: str = ""
    """Of what isn't served: why it is without effect, or refused."""
    takes_value: bool = True
    refused: bool = False

    @property
    def is_flag(self) -> bool:
        return self.name.startswith("--")


FORMER = (
    # flags: other names of a knob
    Former("--think-budget", "reasoning.think_budget"),
    Former("--max-batch", "scheduler.max_rows"),
    Former("--prefill-chunk-size", "scheduler.prefill_chunk"),
    Former("--min-kv-tokens", "kv_cache.min_tokens"),
    Former("--prefix-cache", "prefix_cache.path"),
    Former("--lora", "adapters.lora"),
    Former("--models-dir", "router.models_dir"),
    Former("--request-timeout", "server.request_timeout_s"),
    Former("--http-read-timeout", "server.body_timeout_s"),
    Former("--http-write-timeout", "server.send_timeout_s"),
    Former("--responses-store-ttl", "responses.store_ttl_s"),
    Former("--vram-budget", "cuda.memory_mib"),
    Former("--device", "cuda.device"),
    Former("--gpu-layers", "cuda.gpu_layers"),
    # flags: one value of a knob
    Former("--kv-fp8", "kv_cache.dtype", "fp8"),
    Former("--kv-int8", "kv_cache.dtype", "int8"),
    Former("--kv-int4", "kv_cache.dtype", "int4"),
    Former("--kv-nvfp4", "kv_cache.dtype", "nvfp4"),
    Former("--kv-mxfp4", "kv_cache.dtype", "mxfp4"),
    Former("--kv-fp16", "kv_cache.dtype", "f16"),
    Former("--no-cuda-graphs", "cuda.graphs", "never"),
    # flags: without effect
    Former("--ssm-fp16", why="no served model has recurrent state", takes_value=False),
    Former("--decode-nvfp4", why=CACHES, takes_value=False),
    Former("--decode-nvfp4-only", why=CACHES, takes_value=False),
    Former("--no-nvfp4", why=CACHES, takes_value=False),
    Former("--mxfp4-prefill", why=CACHES, takes_value=False),
    Former("--dual-path-quant", why=CACHES, takes_value=False),
    Former("--max-images-per-request", why=IMAGES),
    Former("--http-keep-alive-max", why="a connection may be used as often as its client likes"),
    # flags: refused
    Former("--mmproj", why=f"{IMAGES}; leave --mmproj out", refused=True),
    Former("--allow-remote-images", why=f"{IMAGES}; leave --allow-remote-images out", takes_value=False, refused=True),
    # keys: served under another name
    Former("runtime.deterministic", "engine.deterministic"),
    Former("runtime.warmup", "engine.warmup"),
    Former("runtime.decode_pipeline", "engine.overlap"),
    Former("runtime.max_seq_len", "model.max_seq_len"),
    Former("runtime.max_batch_size", "scheduler.max_rows"),
    Former("runtime.prefill_chunk_size", "scheduler.prefill_chunk"),
    Former("runtime.vram_budget_mb", "cuda.memory_mib"),
    Former("runtime.cuda_graphs", "cuda.graphs"),
    Former("runtime.think_answer_reserve", "reasoning.answer_reserve"),
    Former("kv_cache.host_spill_mb", "kv_cache.host_spill_mib"),
    Former("server.prefix_cache", "prefix_cache.enabled"),
    Former("server.prefix_pin_budget_pct", "prefix_cache.pin_budget_pct"),
    Former("server.session_ttl_s", "prefix_cache.session_ttl_s"),
    Former("server.transcript_token_reuse", "prefix_cache.transcripts"),
    Former("server.recurrent_snapshot_mb", "prefix_cache.snapshot_mib"),
    Former("server.agent_scan_limit", "reasoning.agent_scan_tokens"),
    Former("server.otlp_endpoint", "metrics.otlp_endpoint"),
    Former("server.otlp_service_name", "metrics.otlp_service_name"),
    Former("warm_cache.enabled", "cpu.pack_cache"),
    Former("warm_cache.dir", "cpu.pack_cache_path"),
    Former("constrained.jump_ahead", "grammar.jump_ahead"),
    Former("grammar.memo_mib", "grammar.memory_mib"),
    # keys: without effect
    Former("attention.", why="attention is exact"),
    Former("moe.", why="all experts are in memory"),
    Former("rope.", why="a model's own scaling is used"),
    Former("suspend.", why="a suspended engine is a process that has ended"),
    Former("vram.", why=PLANNED),
    Former("constrained.jump_min_run", why="forced text is drafted where it pays"),
    Former("grammar.max_states", why="the work and memory of a grammar are bounded (docs/limits.md)"),
    Former("runtime.deterministic_gemm", why="engine.deterministic says it for all"),
    Former("runtime.graph_prewarm", why=SPEED),
    Former("runtime.decode_burst", why="a cancelled request is noticed at each step"),
    Former("runtime.prefill_chunk_decode_cap", why=SIZED),
    Former("runtime.prefill_cap_fairness", why=SIZED),
    Former("runtime.prefill_batch_decode_cap", why=SIZED),
    Former("runtime.prefill_batch", why="prompts and answers share their steps"),
    Former("runtime.prefill_mixed_decode", why="prompts and answers share their steps"),
    Former("runtime.prefill_overlap", why=SPEED),
    Former("runtime.hybrid_decode_quantum", why="no served model has recurrent state"),
    Former("runtime.vision_max_patches", why=IMAGES),
    Former("kv_cache.growable", why=PLANNED),
    Former("kv_cache.growable_initial_pct", why=PLANNED),
    Former("kv_cache.swa_sizing", why="layers with a window keep a window"),
    Former("kv_cache.swa_snapshot_mb", why="layers with a window keep blocks"),
    Former("server.model_swap", why="the router loads what a request names (docs/router.md)"),
    Former("server.model_swap_drain_ms", why="the router lets answers end (docs/router.md)"),
    Former("server.recurrent_snapshot_host_mb", why="snapshots are kept in host memory (prefix_cache.snapshot_mib)"),
    Former("server.snapshot_min_prompt_tokens", why="prefix_cache.checkpoint_min_step says it"),
    Former("server.transcript_snapshot", why="prefix_cache.transcripts says it for all"),
    Former("server.green_contexts", why=SPEED),
    Former("speculative.draft_ctx_cap", why=DRAFTS),
    Former("speculative.shallow_draft_ctx", why=DRAFTS),
    Former("speculative.min_history", why=DRAFTS),
    Former("speculative.batch_rr", why=DRAFTS),
    Former("speculative.token_recycling", why=DRAFTS),
    Former("speculative.recycle_slots", why=DRAFTS),
    Former("speculative.ngram_corpus", why=DRAFTS),
    Former("speculative.mtp_k", why=DRAFTS),
)

# Values of theirs -> what they are here.
FORMER_VALUES: dict[tuple[str, str], str] = {
    ("kv_cache.dtype", "fp16"): "f16",
    ("kv_cache.dtype", "fp32"): "f32",
    ("scheduler.prefill_chunk", "-1"): "0",
}

# All that is accepted beside the names made from fields.
VALUE_ALIASES = OWN_VALUE_ALIASES | FORMER_VALUES
FLAG_ALIASES = OWN_ALIASES | {row.name: row.ours for row in FORMER if row.is_flag and row.ours and not row.value}
VALUE_FLAGS = {row.name: (row.ours, row.value) for row in FORMER if row.value} | OWN_VALUE_FLAGS
KEY_ALIASES = {row.name: row.ours for row in FORMER if row.ours and not row.is_flag}
NO_EFFECT = {row.name: row.why for row in FORMER if not row.ours and not row.refused}
NO_EFFECT_KEYS = frozenset(row.name for row in FORMER if row.name in NO_EFFECT and not row.is_flag)
NO_EFFECT_FLAGS = {row.name: row.takes_value for row in FORMER if row.name in NO_EFFECT and row.is_flag}
"""Whether a value follows."""
REFUSED_FLAGS = {row.name: (row.takes_value, row.why) for row in FORMER if row.refused}
"""Flags whose silent loss would hurt: whether a value follows, and what to do instead."""
