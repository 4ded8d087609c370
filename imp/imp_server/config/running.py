"""Knobs of the engine process: the loop, its memory and its backends."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from imp_server.config.types import (
    CardIndex,
    Count,
    Fraction,
    GpuLayers,
    Milliseconds,
    Percent,
    Positive,
    Seconds,
    Words,
)


class EngineSettings(msgspec.Struct, frozen=True):
    """The process that owns the model."""

    backend: Literal["auto", "cpu", "reference", "cuda"] = "auto"
    """What runs the model; auto = cpu if it is built, else reference. cuda is new, and used only when it is named."""
    deterministic: bool = False
    """Same tokens on cuda whatever shares a step, at a high cost; cpu and reference always are so."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Launch step N+1 before step N is read; off = the plain loop, auto = whichever is faster on the backend."""
    warmup: bool = True
    """Run a few steps and measure the cost table before saying ready."""
    heartbeat_s: Seconds = 1
    """Seconds between two signs of life of the engine."""
    watchdog_s: Seconds = 30
    """Seconds without a sign of life after which the engine is restarted; 0 = never."""
    stuck_mask_s: Seconds = 30
    """Seconds with one question after which the thread for grammars counts as stuck; past the second the engine is
    restarted; 0 = never."""
    restart_backoff_s: Seconds = 0.5
    """Seconds before the first restart after a crash; doubled each time."""
    restart_backoff_max_s: Seconds = 30
    """Longest pause between two restarts in seconds."""
    crash_limit: Positive = 3
    """Crashes by one and the same request after which it is refused."""
    idle_unload_s: Annotated[int, Meta(ge=0, extra={"flag": "idle_unload_seconds"})] = 0
    """Seconds without a request after which the model leaves memory until the next one; 0 = never."""


class SchedulerSettings(msgspec.Struct, frozen=True):
    """What goes into one step."""

    step_ms: Milliseconds = 50
    """Time budget of a step in milliseconds while somebody is being answered."""
    step_alone_ms: Milliseconds = 200
    """Time budget of a step in milliseconds when it only prefills."""
    max_rows: Count = 0
    """Sequences decoded at once; 0 = decided by backend and memory."""
    prefill_chunk: Count = 0
    """Most prompt tokens of one row in a step; 0 = as many as the time budget allows."""


class KvCacheSettings(msgspec.Struct, frozen=True):
    """Memory of keys and values."""

    dtype: Literal["auto", "f32", "f16", "bf16", "int8", "fp8", "int4", "nvfp4", "mxfp4"] = "auto"
    """Type of cached keys and values; one that the backend lacks is refused at start."""
    size_mib: Count = 0
    """Size of the pool in MiB; 0 = decided from free memory."""
    max_blocks: Count = 0
    """Size of the pool in blocks of 16 tokens, instead of MiB; 0 = decided from free memory."""
    min_tokens: Count = 0
    """Tokens the pool must hold at least; otherwise the server refuses to start."""
    host_spill_mib: Count = 0
    """Memory in MiB for evicted prefixes; 0 = none. Backends on the CPU spill to a file that vanishes with the server.

    With prefix_cache.path set, that folder's file takes them instead."""


class PrefixCacheSettings(msgspec.Struct, frozen=True):
    """Reuse of prompts that begin alike."""

    enabled: bool = True
    """Keep prompts and answers for the next request that begins with them."""
    path: str = ""
    """Folder that keeps the cache over restarts, one file per model; empty = none."""
    slots_path: str = ""
    """Folder in which POST /slots/N?action=save keeps what a row has computed; empty = 501."""
    path_mib: Count = 4096
    """Most MiB of a model's file in that folder."""
    pin_budget_pct: Percent = 25
    """Percent of the pool that pinned prefixes may hold; 0 = no pins."""
    session_ttl_s: Seconds = 600
    """Seconds after which an idle session's pin is released; 0 = only when closed."""
    transcripts: bool = True
    """Reuse the exact ids of an earlier answer when a client sends it back."""
    isolate_keys: bool = False
    """Requests with different API keys share no cached prefixes."""
    max_transcripts: Count = 256
    """Answers remembered for that."""
    transcripts_mib: Count = 64
    """Most MiB of remembered answers, with the ids of the conversations before them."""
    checkpoint_min_step: Count = 8192
    """Tokens between two state snapshots of layers that can't be rolled back; no model that imp runs has any yet."""
    max_snapshots: Count = 32
    """Most state snapshots per conversation, for such layers; 0 = none."""
    snapshot_mib: Count = 256
    """Most MiB of state snapshots, for such layers."""


class SpeculativeSettings(msgspec.Struct, frozen=True):
    """Drafts: they change the speed, never the tokens."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """auto = on for dense models, off for mixtures of experts."""
    drafters: Words = ("forced", "ngram", "model", "recall")
    """Who may propose, in order; the first proposal wins."""
    ngram: bool = True
    """Look up the last tokens in prompt and answer, and propose what followed."""
    suffix: bool = True
    """Vote among all earlier occurrences instead of taking the most recent."""
    k: Positive = 16
    """Longest draft in tokens; the cost table usually chooses less."""
    suffix_k_max: Positive = 64
    """Longest draft when several occurrences agree."""
    min_match: Positive = 6
    """Shortest match of the n-gram look-up in tokens."""
    max_match: Positive = 12
    """Longest match of the n-gram look-up in tokens."""
    give_up_after: Count = 64
    """Misses in a row after which a row stops drafting."""
    burst: Count = 128
    """Plain tokens after which it tries again."""
    miss_burst: Count = 8
    """Plain tokens after a miss."""
    burst_rearm: bool = True
    """Try again at all after giving up."""
    cost_gate: bool = True
    """Draft only where the measured cost table says that it pays."""
    draft_model: str = ""
    """Small model of the same vocabulary that drafts for the large one."""
    draft_max: Positive = 8
    """Longest draft of the draft model in tokens; the cost table usually chooses less."""
    draft_p_min: Fraction = 0.0
    """A draft of the draft model ends before a token that it finds less likely than this; 0 = it never does."""


class CpuSettings(msgspec.Struct, frozen=True):
    """The native CPU backend."""

    threads: Count = 0
    """Threads; 0 = the cores that affinity and quota leave us."""
    isa: Literal["", "portable", "avx2", "avxvnni", "avx512vnni", "dotprod", "i8mm"] = ""
    """Force one instruction set; empty = the best this CPU has."""
    quantize: Literal["none", "q8", "q4"] = "none"
    """Quantise float checkpoints at load."""
    pack_cache: bool = True
    """Keep packed weights on disk, so that the next start maps them."""
    pack_cache_path: str = ""
    """Folder for packed weights; empty = packed under IMP_HOME."""
    spin_us: Count = 75
    """Microseconds a thread spins for work before it sleeps."""
    huge_pages: bool = True
    """Hold the weights in huge pages, as a copy in memory where a mapping of the file isn't."""
    head_plane: bool = True
    """Split an 8-bit head (Q8_0): greedy rows of one stream read its upper bits first, same ids."""


KernelUse = Literal["auto", "all", "none"]


class CudaSettings(msgspec.Struct, frozen=True):
    """The CUDA backend."""

    device: CardIndex = 0
    """Index of the GPU; -1 = none, plain operations on the CPU: slow, to compare and to test."""
    gpu_layers: GpuLayers = -1
    """-1 = all layers are on the GPU; 0 = none, as with device -1. Parts of a model can't be split off."""
    graphs: Literal["auto", "always", "never"] = "auto"
    """Capture decode steps as CUDA graphs."""
    kernels: KernelUse = "auto"
    """Our own kernels: those that have proved themselves on this card (which is tried once and kept), all, or none."""
    memory_mib: Count = 0
    """GPU memory we may use in MiB; 0 = memory_fraction of what is free."""
    memory_fraction: Fraction = 0.9
    """Share of the free GPU memory we may use."""
