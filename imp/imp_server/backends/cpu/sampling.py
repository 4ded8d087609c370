"""A row's sampling as the native sampler reads it, and its answer as a RowResult.

Native: bias, bans, penalties, masks, temperature, top-k, top-p, min-p, noise, logprobs, verification of drafts.
On the host, by the law itself: what backends/sampled_rows.py names, which is rare.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from imp_server.backends.base import MASK_PATIENCE_S, Int32s, RowResult, SampledLogprobs, StepRow, UInt32s
from imp_server.backends.cpu import abi
from imp_server.backends.sampled_rows import n_history
from imp_server.decode.state import SamplerState


class NativeSampling:
    """One row's plan with the arrays it points to, filled by the native call."""

    def __init__(
        self,
        plan: abi.SamplerPlan,
        row: StepRow,
        state: SamplerState,
        drafts: Int32s,
        masks: UInt32s | None,
        vocab_size: int,
        flags: UInt32s | None = None,
    ) -> None:
        self._plan = plan
        p = state.params
        n = 1 + row.n_drafts
        self._n_logprobs = min(row.n_logprobs, vocab_size)
        self.tokens = np.empty(n, dtype=np.int32)
        if p.repetition_penalty != 1.0 or p.presence_penalty or p.frequency_penalty:
            plan.history = state.history.ctypes.data
        plan.n_history, plan.n_prompt = n_history(row), state.n_prompt
        plan.slot, plan.n_ahead = row.slot, row.is_ahead
        n_output = plan.n_history - state.n_prompt
        if row.n_drafts:
            self._drafts = np.ascontiguousarray(drafts)
            plan.drafts, plan.n_drafts = self._drafts.ctypes.data, row.n_drafts
        plan.tokens = self.tokens.ctypes.data
        plan.temperature, plan.top_k, plan.top_p, plan.min_p = p.temperature, max(0, p.top_k), p.top_p, p.min_p
        plan.seed, plan.choice = p.seed & 0xFFFFFFFFFFFFFFFF, state.choice
        plan.position = n_output + state.n_gone
        plan.repetition, plan.repeat_last_n = p.repetition_penalty, p.repeat_last_n
        plan.presence, plan.frequency = p.presence_penalty, p.frequency_penalty
        plan.n_logprobs = self._n_logprobs
        if p.logit_bias:
            self._bias_ids = np.array([i for i, _ in p.logit_bias], dtype=np.int32)
            self._bias = np.array([b for _, b in p.logit_bias], dtype=np.float32)
            plan.bias_ids, plan.bias, plan.n_bias = self._bias_ids.ctypes.data, self._bias.ctypes.data, len(self._bias)
        if banned := p.banned_at(n_output):  # the same for all drafts: none go beyond min_tokens
            self._banned = np.array(banned, dtype=np.int32)
            plan.banned, plan.n_banned = self._banned.ctypes.data, len(self._banned)
        if row.mask_row >= 0 and masks is not None:
            plan.mask_words = masks.shape[1]
            plan.masks = masks.ctypes.data + 4 * row.mask_row * masks.shape[1]
            if flags is not None:
                plan.mask_flags = flags.ctypes.data + 4 * row.mask_row
                plan.mask_patience_us = round(1e6 * MASK_PATIENCE_S)
        if self._n_logprobs >= 0:
            self._make_room_for_logprobs(n)

    def result(self) -> RowResult:
        """No token and no dead end means that the logits weren't numbers: the engine fails this row alone."""
        plan = self._plan
        if plan.not_numbers:
            return RowResult(tokens=np.empty(0, dtype=np.int32))
        n = plan.n_tokens
        result = RowResult(self.tokens[:n], plan.n_accepted, dead_end=bool(plan.dead_end))
        result.mask_late, result.mask_wait_ms = bool(plan.mask_late), plan.mask_wait_us / 1e3
        result.n_left_out = plan.n_left_out
        if self._n_logprobs >= 0:
            result.logprobs = SampledLogprobs(self._logprobs[:n], self._ranks[:n], self._top_ids[:n], self._top[:n])
        return result

    def _make_room_for_logprobs(self, n: int) -> None:
        self._logprobs: npt.NDArray[np.float32] = np.empty(n, dtype=np.float32)
        self._ranks = np.empty(n, dtype=np.int32)
        self._top_ids = np.empty((n, self._n_logprobs), dtype=np.int32)
        self._top = np.empty((n, self._n_logprobs), dtype=np.float32)
        plan = self._plan
        plan.logprobs, plan.ranks = self._logprobs.ctypes.data, self._ranks.ctypes.data
        plan.top_ids, plan.top = self._top_ids.ctypes.data, self._top.ctypes.data
