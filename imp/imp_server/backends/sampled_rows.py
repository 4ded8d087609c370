"""Which part of the sampling law a row needs, for backends that have most of it themselves."""

from __future__ import annotations

from imp_server.backends.base import StepRow
from imp_server.core import SamplingParams


def on_host_reason(params: SamplingParams, *, logprobs_as_drawn: bool = False) -> str:
    """One of base.ON_HOST_REASONS; empty if the row is sampled by the backend itself."""
    if params.dry_multiplier > 0:
        return "dry"
    if logprobs_as_drawn:
        return "post_sampling_probs"
    if params.temperature <= 0:
        return ""
    rare = {
        "mirostat": params.mirostat != 0,
        "typical_p": params.typical_p < 1.0,
        "dynatemp": params.dynatemp_range > 0.0,
        "top_n_sigma": params.top_n_sigma > 0.0,
        "xtc": params.xtc_probability > 0.0,
    }
    return next((reason for reason, is_asked in rare.items() if is_asked), "")


def is_plain_best(row: StepRow) -> bool:
    """The row's ids are the argmaxes of its raw logits, so no logits need be kept."""
    if row.sampler is None or row.mask_row >= 0 or row.n_logprobs >= 0:
        return False
    p = row.sampler.params
    changed = p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0 or p.dry_multiplier > 0
    banned = p.banned_at(n_history(row) - row.sampler.n_prompt)
    return not (p.temperature > 0 or changed or p.logit_bias or banned)


def n_history(row: StepRow) -> int:
    """Ids in front of the one to be sampled."""
    assert row.sampler is not None
    return row.sampler.length if row.n_history < 0 else row.n_history


def reason_of(row: StepRow) -> str:
    """One of base.ON_HOST_REASONS; empty if the backend samples the row itself."""
    assert row.sampler is not None
    return on_host_reason(row.sampler.params, logprobs_as_drawn=row.logprobs_as_drawn and row.n_logprobs >= 0)
