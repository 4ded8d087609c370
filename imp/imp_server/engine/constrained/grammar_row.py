"""One row's place in its grammar, the mask for its next token, and length steering.

Steering is a rule about tokens: where the shortest way to the end fits into what the reply may still have, a token is
allowed only if that stays so behind it. Near the limit the masks are narrowed to such tokens. Far from it nearly
every token keeps the rule, so the one that was sampled is looked at, and the position sampled again without it if it
breaks the rule. With noise that depends on position and id alone both are the same. The second way alone tells whether
steering changed a reply, so the first begins when one has been changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple

from imp_server.engine.constrained.constraint import Constraint
from imp_server.engine.constrained.masking import NOBODY, Asker, Made, MaskThread, Wanted

_PATIENCE_S = 0.001
"""How long the loop waits for a grammar that the mask thread is busy with."""
_NEAR = 24
"""Tokens to spare below which masks are narrowed: more than one token adds to the way out in common grammars."""

Verdict = Literal["ok", "refused", "forbidden", "later"]


class Spot(NamedTuple):
    """A place, the tokens that the reply may have from there, and the way out that was last known to fit.

    `route` None: the shortest way from the place is the one. A place behind the first token of a way may know no
    way as short as the rest of that one; then the row holds on to the rest.
    """

    place: Any
    n_left: int
    route: tuple[int, ...] | None = None


class _Ahead(NamedTuple):
    """A draft, the spot behind it and the mask for what follows."""

    token_id: int
    spot: Spot
    mask: Future[Made]


class GrammarRow:
    """Owner of one row's place and of the mask for its next token."""

    def __init__(
        self,
        constraint: Constraint,
        end_ids: tuple[int, ...],
        masks: MaskThread,
        n_left: int,
        *,
        n_early: int = -1,
        n_least: int = 0,
        steers: bool = True,
        asker: Asker = NOBODY,
    ) -> None:
        """`n_left`: tokens that the reply may have. `n_early`: behind how many of them early tags don't count.

        `n_least`: before so many nothing ends it where the grammar allows anything else.
        """
        self._constraint = constraint
        self._end_ids = end_ids
        self._masks = masks
        self._asker = asker
        self._steers = steers
        self._past_at = n_left - n_early if n_early > 0 else -1
        self._goes_on_above = n_left - n_least
        self._spot = Spot(constraint.start, n_left)
        self._refused: frozenset[int] = frozenset()
        self._next: tuple[int, Spot] | None = None
        self._job: Future[Made] | None = None
        self._ahead: list[_Ahead] = []
        self._is_on_walk = False
        self.judging: Future[Any] | None = None
        """What the mask thread is asked about the token sampled last."""
        self.n_steered = 0
        """Positions at which steering took a choice away."""
        self.may_overlap = True
        """The mask was asked for behind the last step: it may be filled while the next one's forward runs."""

    # --- masks ----------------------------------------------------------------------------------

    @property
    def steers(self) -> bool:
        """The place is one whose end may be steered to."""
        return self._steers

    @steers.setter
    def steers(self, steers: bool) -> None:
        if steers != self._steers:
            self._steers = steers
            self._forget_masks()

    @property
    def is_on_walk(self) -> bool:
        """The mask of the next token is the one that was asked for behind its drafts."""
        return self._is_on_walk

    def _forget_masks(self) -> None:
        """The place, or the rule of steering, is another from here on: what was asked for may be too wide or narrow."""
        self._job, self._ahead, self._is_on_walk = None, [], False

    @property
    def is_quick(self) -> bool:
        """Its masks are worth a short wait: its owner's questions don't wait behind those of others."""
        return self._masks.is_quick(self._asker)

    def note_sampled(self) -> None:
        """A token was sampled under its mask."""
        self._masks.earn(self._asker)

    def request_mask(self) -> None:
        """Begin to fill the mask for the next token, unless that has been done."""
        if self._job is None:
            self._job = self._begin_mask(self._spot, self._refused)

    @property
    def job(self) -> Future[Made]:
        self.request_mask()
        assert self._job is not None
        return self._job

    def walk(self, drafts: Sequence[int]) -> list[Future[Made]]:
        """Begin the masks behind each draft, up to the first that ends the reply or that isn't allowed."""
        self._ahead = []
        spot: Spot | Verdict = self._spot
        for token_id in drafts:
            assert isinstance(spot, Spot)
            spot = "forbidden" if token_id in self._end_ids else self._after(spot, token_id)
            if not isinstance(spot, Spot):
                break
            self._ahead.append(_Ahead(token_id, spot, self._begin_mask(spot)))
        return [each.mask for each in self._ahead]

    def draft_masks(self, n_drafts: int) -> list[Future[Made]]:
        """The masks behind the first drafts walked."""
        return [each.mask for each in self._ahead[:n_drafts]]

    def _begin_mask(self, spot: Spot, refused: frozenset[int] = frozenset()) -> Future[Made]:
        try:
            tight = self._is_tight(spot, refused, 0.0)
        except Exception:  # not known in time, or a fault: there it fails this row alone
            tight = True
        if tight:
            return self._masks.call(lambda: self._make_tight(spot, refused), self._constraint, self._asker)
        return self._masks.submit(self._wanted(spot, refused), self._asker)

    def _wanted(self, spot: Spot, refused: frozenset[int]) -> Wanted:
        goes_on = spot.n_left > self._goes_on_above
        return Wanted(self._constraint, spot.place, self._end_ids, refused=refused, goes_on=goes_on)

    def _make_tight(self, spot: Spot, refused: frozenset[int]) -> Made:
        """On the mask thread."""
        wanted = self._wanted(spot, refused)
        if not self._is_tight(spot, refused, None):
            return self._masks.fill(wanted)
        route = self._constraint.route(spot.place) if spot.route is None else spot.route
        return self._masks.fill(wanted._replace(n_left=max(0, spot.n_left - 1), keep=route[0] if route else -1))

    def _is_tight(self, spot: Spot, refused: frozenset[int], patience_s: float | None) -> bool:
        """Whether the mask has to be narrowed."""
        if not self._steers or not (refused or self.n_steered):
            return False
        if spot.route is not None:
            return True
        spare = spot.n_left - self._constraint.n_out(spot.place, patience_s)
        return spare >= 0 and (spare < _NEAR or bool(refused))

    # --- tokens ---------------------------------------------------------------------------------

    def judge(self, token_id: int) -> Verdict:
        """Whether the sampled token may be taken. "refused": the position is sampled again without it.

        "later": `judging` will tell when to ask again.
        """
        self.judging = None
        if token_id in self._end_ids:
            return "ok" if self.is_done else "forbidden"
        found = self._after(self._spot, token_id)
        if isinstance(found, Spot):
            self._next = token_id, found
            return "ok"
        if found == "later":
            spot = self._spot
            self.judging = self._masks.call(lambda: self._after(spot, token_id, None), self._constraint, self._asker)
        elif found == "refused":
            self._refused |= {token_id}
            self.n_steered += len(self._refused) == 1
            self._forget_masks()
            self.request_mask()
        return found

    def advance(self, token_id: int) -> bool:
        """Take a token. False: the grammar doesn't allow it. The mask asked for before is void."""
        if token_id in self._end_ids:
            return self.is_done
        if self._next is None or self._next[0] != token_id:
            place = self._step(self._spot, token_id, None)
            if place is None:
                return False
            self._next = token_id, Spot(place, self._spot.n_left - 1)
        if self._job is not None and self._job.done() and not self._refused:
            self.n_steered += self._job.result().is_narrowed
        self._spot, self._next = self._next[1], None
        self._refused = frozenset()
        self.may_overlap = True
        first = self._ahead.pop(0) if self._ahead else None
        self._is_on_walk = first is not None and first.token_id == token_id
        if first is not None and self._is_on_walk:
            self._job = first.mask
        else:
            self._job, self._ahead = None, []
        return True

    def closed_by_force(self) -> None:
        """The tokens taken last were the forced closer of the thinking: what the grammar says of that holds."""
        place = self._constraint.after_closing
        if place is not None:
            self._spot = Spot(place, self._spot.n_left)
            self._forget_masks()

    def only(self) -> int | None:
        """The id that must come next, where the mask is there already and holds no other; never one that ends.

        It may be taken: nothing could be sampled but this id, whatever the logits.
        """
        job = self._job
        if job is None or not job.done() or job.cancelled() or job.exception() is not None:
            return None
        token_id = job.result().only
        if token_id < 0 or token_id in self._end_ids or self.judge(token_id) != "ok":
            return None
        return token_id

    def close(self) -> None:
        """The row is over: nobody needs what the mask thread hasn't found yet."""
        for job in (self._job, self.judging, *(each.mask for each in self._ahead)):
            if job is not None:
                job.cancel()

    @property
    def is_done(self) -> bool:
        return self._constraint.is_done(self._spot.place)

    def forced(self) -> bytes:
        """Marked bytes that must come next; b"" if there is a choice, or where it can't be told in time."""
        try:
            return self._constraint.forced(self._spot.place, _PATIENCE_S)
        except Exception:
            return b""

    def _step(self, spot: Spot, token_id: int, patience_s: float | None) -> Any | None:
        """The place behind the token; None: it isn't allowed."""
        place = self._constraint.step(spot.place, token_id, patience_s)
        if place is not None and spot.n_left - 1 == self._past_at:
            return self._constraint.past_early(place, patience_s)
        return place

    def _after(self, spot: Spot, token_id: int, patience_s: float | None = _PATIENCE_S) -> Spot | Verdict:
        """The spot behind the token, or why there is none."""
        constraint, n_left = self._constraint, spot.n_left - 1
        try:
            place = self._step(spot, token_id, patience_s)
            if place is None:
                return "forbidden"
            if not self._fits(spot, patience_s) or constraint.n_out(place, patience_s) <= n_left:
                return Spot(place, n_left)
            route = tuple(constraint.route(spot.place, patience_s)) if spot.route is None else spot.route
        except Exception:
            if patience_s is None:
                raise
            return "later"  # not known in time, or a fault: on the mask thread that fails this row alone
        if route[:1] == (token_id,) and len(route) - 1 <= n_left:
            return Spot(place, n_left, route[1:])
        return "refused"

    def _fits(self, spot: Spot, patience_s: float | None) -> bool:
        """Steering has something to hold on to. Where not even the shortest value fits, a reply is cut as any other."""
        if not self._steers:
            return False
        return spot.route is not None or self._constraint.n_out(spot.place, patience_s) <= spot.n_left
