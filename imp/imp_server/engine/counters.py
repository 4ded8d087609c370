"""What an engine tells of itself: the counters that are there from the start, the scheduler's, and one dict per row."""

from __future__ import annotations

from typing import Any

from imp_server.backends.base import ON_HOST_REASONS
from imp_server.schedule.rows import Row
from imp_server.schedule.scheduler import Scheduler

CONSTRAINED_COUNTERS = (
    "grammar_steered_total",
    "constrained_only_total",
    "constrained_samples_total",
    "constrained_mask_waits_total",
    "constrained_mask_wait_ms_total",
    *(f'constrained_eager_fallback_total{{reason="{reason}"}}' for reason in ON_HOST_REASONS),
)
"""Positions that steering took a choice from. Tokens taken without logits, since the grammar left no choice. Rows
sampled under a mask; of them, rows whose mask wasn't there when it was wanted, and for how long. Rows sampled on the
host because of a part of the sampling law that only it knows."""
_FROM_THE_START = (
    "choices_cancelled_total",
    "choices_finished_total",
    "context_shifts_total",
    "completion_tokens_total",
    "computed_tokens_total",
    "decode_ms_total",
    "prefill_ms_total",
    "prompt_tokens_total",
    "requests_rejected_total",
    "requests_total",
    "grammar_blown_caps_total",
    "grammar_dead_ends_total",
    "integrity_faults_total",
    "overlap_void_chunks_total",
    "requests_failed_total",
    "steps_failed_total",
    "steps_total",
    *CONSTRAINED_COUNTERS,
)


def zeros() -> dict[str, float]:
    """Counters that metrics show before anything was counted."""
    return dict.fromkeys(_FROM_THE_START, 0.0)


def scheduler_counters(scheduler: Scheduler) -> dict[str, float]:
    """For metrics, by name."""
    return {
        "preemptions_total": float(scheduler.n_preemptions),
        "rollbacks_refused_total": float(scheduler.n_refused_rollbacks),
        "resumed_tokens_total": float(scheduler.n_resumed_tokens),
        "recomputed_tokens_total": float(scheduler.n_recomputed_tokens),
    }


def row_facts(row: Row) -> dict[str, Any]:
    """What /slots shows of an admitted row."""
    return {
        "slot": row.slot,
        "key": row.key,
        "choice": row.choice,
        "n_prompt": row.sampler.n_prompt,
        "n_computed": row.n_computed,
        "n_cached": row.n_cached,
        "n_left": max(0, row.sampler.capacity - 1 - row.sampler.length),
        "n_output": len(row.sampler.output),
        "is_decoding": row.is_decoding,
    }
