"""Speculation: whom to ask for drafts, and how long a draft pays.

A draft of d tokens is worth E(d) = a1 + a1 a2 + ... + a1 ... ad tokens, ai being the odds that the drafter gives its
i-th token, or the row's acceptance so far where it gives none, and costs what the step takes longer with d more
positions. The length with the most tokens per millisecond is taken, and none where that doesn't beat the step without
it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np

from imp_server.core import GenerateRequest
from imp_server.decode.drafter import Draft, DraftedRow, Drafter, Float32s, Int32s, ModelLike, RowDrafter
from imp_server.engine.constrained.masking import MASK_GRACE_S, Made, wait_for_all
from imp_server.engine.drafting.draft_account import DraftAccount
from imp_server.engine.drafting.drafts import Acceptance, RowDrafting
from imp_server.engine.live import LiveRow
from imp_server.schedule.cost import CostTable
from imp_server.schedule.tiers.record import scoped_group

_LENGTHS = (1, 2, 3, 4, 5, 7, 11, 15, 23, 31, 47, 63, 127)
"""Lengths tried besides the whole proposal: with the token before them they fill the kernels' row counts."""
_MARGIN = 1.05
"""By how much a draft must be expected to win: a measured cost is never exact."""
_REASONS = ("cost", "masks", "memory")


class _Proposal(NamedTuple):
    ids: Int32s
    drafter: RowDrafter
    acceptance: Acceptance
    odds: tuple[float, ...] = ()

    def expected(self, n: int) -> float:
        """Tokens accepted of the first n."""
        return sum(accumulate(self.odds[:n], mul)) if self.odds else _expected(self.acceptance.rate, n)


class Speculation:
    """Owner of the drafters and of the counters of what their drafts came to."""

    def __init__(
        self,
        drafters: Iterable[Drafter] = (),
        *,
        costs: CostTable | None = None,
        on_by_default: bool = True,
        longest_step_ms: float = 50.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`costs` None = every proposal is tried in full. `clock`: seconds, for what drafting takes."""
        self._clock = clock
        self._drafters = tuple(drafters)
        self._models = {each.name: each for each in self._drafters if isinstance(each, ModelLike)}
        self._costs = costs
        self._on_by_default = on_by_default
        self._longest_step_ms = longest_step_ms
        self._counters: defaultdict[str, float] = defaultdict(float)
        self._proposed: list[LiveRow] = []
        """Rows that go into the next plan with drafts."""
        self._account = DraftAccount() if costs is not None and self._models else None
        """None: nobody drafts for a price, or prices don't matter."""
        self._token_ms = 0.0
        """Of a token of the next step, without drafts."""

    @property
    def is_on(self) -> bool:
        return bool(self._drafters)

    def close(self) -> None:
        for model in self._models.values():
            model.close()

    def propose(self, decoding: Sequence[LiveRow], overlaps_masks: bool = False) -> None:
        """Set the drafts of the rows that decode in the next step; the first drafter with an idea wins.

        `overlaps_masks`: the backend waits for masks that are filled while its forward runs.
        """
        if not self._drafters:
            return
        for live in decoding:
            if len(live.row.drafts):
                live.row.drafts = live.row.drafts[:0]
        asked = self._rows_to_ask(decoding)
        if not asked:
            return
        found = self._ask(asked, len(decoding))
        n_tokens, n_expected = len(decoding), float(len(decoding))
        walks: list[tuple[LiveRow, list[Future[Made]]]] = []
        for live in asked:
            proposal = found.get(live)
            n = 0
            if proposal is not None:
                n, _ = self._best(len(proposal.ids), proposal.expected, n_tokens, n_expected)
            if proposal is None or not n:
                self._pass_over(live, proposal)
                continue
            live.row.drafts = proposal.ids[:n]
            if live.grammar is not None:
                walks.append((live, live.grammar.walk(live.row.drafts.tolist())))
            n_tokens += n
            n_expected += proposal.expected(n)
        self._await_walks(walks, overlaps_masks)
        self._proposed = [live for live in decoding if len(live.row.drafts)]
        self._charge_verification(len(decoding))

    def may_draft_next(self, live: LiveRow, n_rows: int = 1) -> bool:
        """Somebody has a draft for the row now, while its next token is being sampled, so probably behind that, too; or
        one was accepted a few tokens ago.

        A look costs as much as in `propose`, and who finds nothing looks as seldom. `n_rows`: of the next step.
        """
        if not self._drafters or live.output.room_left <= 2 or not self._wanted(live):
            return False
        if live.drafting is None:
            live.drafting = self._start(live)
        if live.row.sampler.position < live.drafting.fruitful_until:
            return True
        if live.row.sampler.position >= live.drafting.silent_until:
            for each in self._drafters:
                if n_rows > each.most_rows or each.name not in live.drafting.drafters:
                    continue
                drafter, acceptance = live.drafting.drafters[each.name]
                if each.name in self._models:
                    if self._account is None or self._account.may_spend:
                        return True
                elif len(drafter.propose(self._most(acceptance, live.output.room_left - 1)).ids):
                    return True
            live.drafting.note_silence()
        self._counters["spec_miss_steps_total"] += 1
        return False

    def _rows_to_ask(self, decoding: Sequence[LiveRow]) -> list[LiveRow]:
        """Rows for which somebody may have a draft; the others cost no more than this glance."""
        asked: list[LiveRow] = []
        n_silent = 0
        for live in decoding:
            drafting = live.drafting
            if drafting is not None and live.row.sampler.position < drafting.silent_until:
                n_silent += 1
            elif self._wanted(live) and live.output.room_left > 1:
                if drafting is None:
                    live.drafting = self._start(live)
                asked.append(live)
        self._counters["spec_miss_steps_total"] += n_silent
        return asked

    def _pass_over(self, live: LiveRow, proposal: _Proposal | None) -> None:
        """Nobody had an idea, or none that pays."""
        if proposal is None:
            self._counters["spec_miss_steps_total"] += 1
        else:
            self._decline(live, "cost", proposal.acceptance)
            proposal.drafter.settle(0, 0)
        assert live.drafting is not None
        live.drafting.note_silence()

    def _await_walks(self, walks: Sequence[tuple[LiveRow, list[Future[Made]]]], overlaps_masks: bool) -> None:
        """Drafts whose masks aren't ready sit out, as rows do."""
        if walks and not overlaps_masks:
            wait_for_all([job for _, jobs in walks for job in jobs], MASK_GRACE_S)
        for live, jobs in walks:
            n_ready = next((i for i, job in enumerate(jobs) if not _is_usable(job, overlaps_masks)), len(jobs))
            live.row.drafts = live.row.drafts[:n_ready]
            if not n_ready:
                self._decline(live, "masks")

    def _charge_verification(self, n_decoding: int) -> None:
        """What the step will take longer with the drafts of a model."""
        if self._account is None or self._costs is None or not self._proposed:
            return
        costs, n_all = self._costs, n_decoding + sum(len(live.row.drafts) for live in self._proposed)
        of_models = [live for live in self._proposed if live.drafting and live.drafting.current in self._models]
        n_others = n_all - sum(len(live.row.drafts) for live in of_models)
        self._account.spend(costs.estimate_ms(n_all) - costs.estimate_ms(n_others))
        self._token_ms = costs.estimate_ms(n_decoding) / n_decoding

    def note_planned(self) -> None:
        """The plan stands; rows whose drafts it couldn't hold have lost them."""
        for live in self._proposed:
            if not len(live.row.drafts):
                self._decline(live, "memory")
        self._proposed = []

    def note_verified(self, drafted: Sequence[LiveRow], elapsed_ms: float) -> None:
        """A step with the drafts of these rows took so long; each drafter counts the whole step, once."""
        if self._account is not None:
            self._account.note_step(elapsed_ms)
        names = {live.drafting.current for live in drafted if live.drafting is not None}
        for who in ("spec", *(f"spec_{name}" for name in names)) if drafted else ():
            self._counters[f"{who}_verify_wall_ms_total"] += elapsed_ms

    def note_late_masks(self, live: LiveRow) -> None:
        """The step has run without the row's drafts, since their masks weren't filled in time."""
        self._decline(live, "masks")

    def settle(self, live: LiveRow, n_drafted: int, n_accepted: int) -> None:
        """Drafts of the row have been verified."""
        counts, drafting = live.output.counts, live.drafting
        counts.note_verified(n_drafted, n_accepted)
        assert drafting is not None
        if drafting.is_prediction:
            counts.accepted_prediction_tokens += n_accepted
            counts.rejected_prediction_tokens += n_drafted - n_accepted
        name = drafting.current
        drafter, acceptance = drafting.drafters[name]
        drafter.settle(n_drafted, n_accepted)
        acceptance.note(n_drafted, n_accepted)
        if n_accepted:
            drafting.note_success(live.row.sampler.position)
        if self._account is not None and name in self._models:
            self._account.save(n_accepted * self._token_ms)
        for who in ("spec", f"spec_{name}"):
            self._counters[f"{who}_drafted_total"] += n_drafted
            self._counters[f"{who}_accepted_total"] += n_accepted
            self._counters[f"{who}_verify_steps_total"] += 1
            self._counters[f"{who}_emitted_total"] += n_accepted + 1
        for place in range(n_accepted):
            self._counters[f'spec_accepted_per_position_total{{position="{place}"}}'] += 1

    def take_hidden(self, live: LiveRow, position: int, hidden: Float32s) -> None:
        """After a step, once the row's new tokens are in its history."""
        if live.drafting is not None:
            for drafter, _ in live.drafting.drafters.values():
                drafter.take_hidden(position, hidden)

    def counters(self) -> dict[str, float]:
        """For metrics, by name; those of drafters that are on are there from the start."""
        names = ["spec_miss_steps_total", *(f'spec_declined_total{{reason="{reason}"}}' for reason in _REASONS)]
        for who in ("spec", *(f"spec_{drafter.name}" for drafter in self._drafters)):
            counted = ("drafted", "accepted", "verify_steps", "emitted", "verify_wall_ms")
            names += [f"{who}_{what}_total" for what in counted]
        names += [f"spec_{name}_draft_wall_ms_total" for name in self._models]
        out = dict.fromkeys(names, 0.0) | self._counters
        for model in self._models.values():
            out |= model.counters()
        steps = out["spec_verify_steps_total"]
        out["spec_mean_acceptance_length"] = 1.0 + out["spec_accepted_total"] / steps if steps else 0.0
        return out

    def _wanted(self, live: LiveRow) -> bool:
        state = live.row.sampler
        if state.length - state.n_prompt < state.params.min_tokens:  # what is banned must be so at every draft
            return False
        wish = live.output.request.options.speculative
        return self._on_by_default if wish is None else wish

    def _decline(self, live: LiveRow, reason: str, acceptance: Acceptance | None = None) -> None:
        self._counters[f'spec_declined_total{{reason="{reason}"}}'] += 1
        counts, name = live.output.counts, f"declined_{reason}"
        setattr(counts, name, getattr(counts, name) + 1)
        if acceptance is not None:
            acceptance.decline(live.row.sampler.position)

    def _start(self, live: LiveRow) -> RowDrafting:
        forced = live.grammar.forced if live.grammar is not None else None
        request = live.output.request
        group = scoped_group(0, request.cache.scope)
        row = DraftedRow(live.row.sampler, _prediction(request), forced, group)
        started = [(each, each.start(row)) for each in self._drafters]
        return RowDrafting(
            {each.name: (drafter, Acceptance(each.confidence)) for each, drafter in started if drafter is not None},
            wants_hidden=any(each.wants_hidden for each, drafter in started if drafter is not None),
        )

    def _ask(self, asked: Sequence[LiveRow], n_decoding: int) -> dict[LiveRow, _Proposal]:
        """Each drafter in its order, about the rows that those before it had no idea for."""
        found: dict[LiveRow, _Proposal] = {}
        for drafter in self._drafters:
            if n_decoding > drafter.most_rows:
                continue
            open_rows = [
                (live, *live.drafting.drafters[drafter.name])
                for live in asked
                if live not in found and live.drafting is not None and drafter.name in live.drafting.drafters
            ]
            if drafter.name in self._models:
                n_before = n_decoding + sum(len(proposal.ids) for proposal in found.values())
                if self._account is None or self._account.may_spend:
                    found |= self._ask_model(self._models[drafter.name], drafter.name, open_rows, n_before)
                    continue
                for live, _, acceptance in open_rows:
                    self._decline(live, "cost", acceptance)
                continue
            for live, row_drafter, acceptance in open_rows:
                draft = row_drafter.propose(self._most(acceptance, live.output.room_left - 1))
                if len(draft.ids):
                    found[live] = self._note(live, drafter.name, draft)
        return found

    def _ask_model(
        self, drafter: ModelLike, name: str, open_rows: Sequence[tuple[LiveRow, RowDrafter, Acceptance]], n_before: int
    ) -> dict[LiveRow, _Proposal]:
        """Drafting costs, so whether it pays is decided before it is done."""
        price_ms = drafter.price_ms(len(open_rows)) if open_rows and self._costs is not None else 0.0
        wanted: list[tuple[LiveRow, RowDrafter, Acceptance, int]] = []
        n_tokens, n_expected = n_before, float(n_before)
        for live, row_drafter, acceptance in open_rows:
            most = min(drafter.k, self._most(acceptance, live.output.room_left - 1))
            expected = partial(_expected, acceptance.rate)
            n, factor = self._best(most, expected, n_tokens, n_expected, price_ms)
            if n and self._pays_to_read(drafter, row_drafter, live.output.room_left, factor):
                wanted.append((live, row_drafter, acceptance, n))
                n_tokens, n_expected = n_tokens + n, n_expected + expected(n)
            else:
                self._decline(live, "cost", acceptance)
        began_s = self._clock()
        drafts = drafter.propose_all([(row_drafter, n) for _, row_drafter, _, n in wanted]) if wanted else []
        spent_ms = 1e3 * (self._clock() - began_s)
        self._counters[f"spec_{name}_draft_wall_ms_total"] += spent_ms
        if self._account is not None:
            self._account.spend(spent_ms)
        return {
            live: self._note(live, name, draft)
            for (live, *_), draft in zip(wanted, drafts, strict=True)
            if len(draft.ids)
        }

    def _pays_to_read(self, drafter: ModelLike, row: RowDrafter, room: int, factor: float) -> bool:
        """Even the longest reply must be able to make up for the text that the draft model has yet to read."""
        if self._costs is None:
            return True
        return drafter.behind_ms(row) <= room * self._costs.estimate_ms(1) * (1.0 - 1.0 / factor)

    def _most(self, acceptance: Acceptance, limit: int) -> int:
        return limit if acceptance.limit is None or self._costs is None else min(limit, acceptance.limit)

    def _note(self, live: LiveRow, name: str, draft: Draft) -> _Proposal:
        assert live.drafting is not None
        live.drafting.current, live.drafting.is_prediction = name, draft.is_prediction
        return _Proposal(draft.ids, *live.drafting.drafters[name], draft.odds)

    def _best(
        self,
        n_proposed: int,
        expected: Callable[[int], float],
        n_tokens: int,
        n_expected: float,
        price_ms: float = 0.0,
    ) -> tuple[int, float]:
        """How many of the proposed tokens to try in a step of `n_tokens` positions that yields `n_expected`.

        And by which factor that is faster than none.

        `expected`: tokens accepted of the first n. `price_ms`: of one token that has yet to be drafted.
        """
        costs = self._costs
        if costs is None or costs.n_sizes < 2:
            return n_proposed, 2.0  # nothing measured yet: this is how it gets measured
        longest_ms = max(self._longest_step_ms, 2.0 * costs.estimate_ms(n_tokens))
        plain_rate = n_expected / costs.estimate_ms(n_tokens)
        best, best_rate = 0, _MARGIN * plain_rate
        for n in {n_proposed, *(n for n in _LENGTHS if n < n_proposed)}:
            ms = costs.estimate_ms(n_tokens + n)
            gain = (n_expected + expected(n)) / (ms + price_ms * n)
            if gain > best_rate and (n_tokens == 1 or ms <= longest_ms):
                best, best_rate = n, gain
        return best, best_rate / plain_rate


def _is_usable(job: Future[Made], overlaps_masks: bool) -> bool:
    return job.exception() is None if job.done() else overlaps_masks


def _expected(rate: float, n: int) -> float:
    """Tokens accepted of a draft of n."""
    return float(n) if rate >= 1.0 else rate * (1.0 - rate**n) / (1.0 - rate)


def _prediction(request: GenerateRequest) -> Int32s:
    return np.frombuffer(request.prediction, dtype="<i4").astype(np.int32)
