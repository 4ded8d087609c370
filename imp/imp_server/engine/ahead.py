"""Which rows are run on before their token is known, and why the others aren't."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from imp_server.engine.flight import step_row
from imp_server.engine.live import LiveRow
from imp_server.engine.parts import EngineParts
from imp_server.schedule.rows import Chunk

REASONS = ("drafts", "hidden", "steering", "grammar", "state", "host_sampling", "memory", "company", "shift")
"""Why a row waits for its token. drafts: what may be drafted depends on it. hidden: a drafter reads the hidden state.
steering: the grammar may take it back. grammar: its mask takes long, or the backend takes no late ones. state: a
recurrent state can't be rolled back. host_sampling: the host samples it. memory: it would have to take others' blocks.
company: so many others wait that a step without them wouldn't pay.
shift: the context may be full by then, and moves."""


class Ahead:
    """Owner of the counts, and of what the host's part of a step takes."""

    def __init__(self, parts: EngineParts, *, overlaps_masks: bool) -> None:
        self._parts, self._backend, self._scheduler = parts, parts.backend, parts.scheduler
        self._overlaps_masks = overlaps_masks
        self._counts: Counter[str] = Counter()
        self._n_ahead = 0
        self.host_ms = 0.0
        """Of a step, outside the forward, of late."""

    def decide(self, waiting: Sequence[LiveRow]) -> None:
        """Mark those that go ahead, of rows that a step under way samples."""
        able: list[LiveRow] = []
        n_others = 0
        for live in waiting:
            live.row.goes_ahead = False
            if live.output.room_left <= 1 or live.output.finish is not None:
                continue  # the token under way is its last one
            reason = self._reason(live, len(waiting))
            if reason:
                self._counts[reason] += 1
                n_others += 1
            else:
                able.append(live)
        if able and not self._pays(len(able), n_others):
            self._counts["company"] += len(able)
            return
        for live in able:
            live.row.goes_ahead = True
        self._n_ahead += len(able)

    def _reason(self, live: LiveRow, n_rows: int) -> str:
        """One of REASONS; empty if it may go ahead, in a step of about `n_rows`."""
        if self._scheduler.memory.has_state:
            return "state"
        if live.output.request.shift is not None:
            return "shift"
        if len(live.row.drafts):  # how many will be accepted isn't known, so neither is the next position
            return "drafts"
        grammar = live.grammar
        if grammar is not None:
            if grammar.n_steered:
                return "steering"
            if not (self._overlaps_masks and grammar.may_overlap and grammar.is_quick):
                return "grammar"
        if live.drafting is not None and live.drafting.wants_hidden:
            return "hidden"
        if live.host_reason is None:
            row = step_row(Chunk(live.row, live.row.n_begun, 1, is_ahead=True), live)
            live.host_reason = self._backend.on_host_reason(row)
        if live.host_reason:
            return "host_sampling"
        return "drafts" if self._parts.speculation.may_draft_next(live, n_rows) else ""

    def _pays(self, n_able: int, n_others: int) -> bool:
        """Rows that wait run in every second step while others run on: do both together get more tokens so?"""
        if not n_others:
            return True
        costs = self._scheduler.costs
        if costs.n_sizes < 2:
            return True
        with_all, without = costs.estimate_ms(n_able + n_others), costs.estimate_ms(n_able)
        n_all = n_able + n_others
        return (n_all + n_able) * (with_all + self.host_ms) >= n_all * (with_all + without)

    def note_host_time(self, ms: float) -> None:
        """A step took so long beside waiting for results."""
        self.host_ms += 0.1 * (ms - self.host_ms)

    def counters(self) -> dict[str, float]:
        """For metrics, by name."""
        counts = self._counts | Counter(memory=self._scheduler.n_kept_back)
        waits = {f'overlap_waits_total{{reason="{reason}"}}': float(counts[reason]) for reason in REASONS}
        return {"overlap_ahead_total": float(self._n_ahead), **waits}
