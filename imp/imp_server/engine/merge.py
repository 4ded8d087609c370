"""Merging hand-offs: what a slow reader missed reaches it as one delta per choice."""

from __future__ import annotations

import msgspec

from imp_server.engine.messages import RowDelta, StepDone


def merge_deltas(first: RowDelta, second: RowDelta) -> RowDelta:
    """`first` followed by `second`, both of the same choice."""
    return RowDelta(
        key=first.key,
        choice=first.choice,
        ids=first.ids + second.ids,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        n_prefilled=max(first.n_prefilled, second.n_prefilled),
        n_cached=second.n_cached if second.n_cached >= 0 else first.n_cached,
        finish=second.finish or first.finish,
        vectors=first.vectors + second.vectors,
        n_to_cache=second.n_to_cache if second.n_cached >= 0 else first.n_to_cache,
    )


def merge_steps(first: StepDone, second: StepDone) -> StepDone:
    """One hand-off that says what the two said; gauges are those of the later one."""
    rows = {(row.key, row.choice): row for row in first.rows}
    for row in second.rows:
        earlier = rows.get((row.key, row.choice))
        rows[row.key, row.choice] = merge_deltas(earlier, row) if earlier else row
    return msgspec.structs.replace(second, rows=tuple(rows.values()))
