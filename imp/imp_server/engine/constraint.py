"""What the loop needs of a grammar, and the thread that starts grammars and fills masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from imp_server.core import GrammarPlan

if TYPE_CHECKING:
    from imp_server.engine.steering import Steering

Mask = NDArray[np.uint32]


class Constraint(Protocol):
    """One grammar over one vocabulary (grammar.engine.Matcher). States are immutable values, so rows share it.

    Called from the step loop and from the mask thread.
    """

    @property
    def start(self) -> Any: ...

    def advance(self, state: Any, token_id: int) -> Any | None:
        """None: the token isn't allowed here."""
        ...

    def fill_mask(self, state: Any, out: Mask) -> None:
        """Set the bits of allowed ids in `out` (zeros on entry). The plan's end ids are the loop's business."""
        ...

    def is_done(self, state: Any) -> bool:
        """The completion may end here."""
        ...

    def forced(self, state: Any) -> bytes:
        """Marked bytes that must come next; b"" if there is a choice."""
        ...

    def way_out(self, state: Any) -> bytes:
        """Marked bytes of a shortest way to the end."""
        ...


_PATIENCE = 8
"""Refusals at one position before the mask is narrowed to the shortest way out. Each costs a forward, and a model that
wants to go on inside a string would have thousands of tokens refused one by one."""

MakeConstraint = Callable[[GrammarPlan], Constraint]
"""Raises GrammarRefused."""


class _Ahead(NamedTuple):
    """A draft, the state behind it and the mask for what follows."""

    token_id: int
    state: Any
    mask: Future[Mask]


class GrammarRow:
    """Owner of one row's place in its grammar and of the mask for its next token."""

    def __init__(
        self, constraint: Constraint, end_ids: tuple[int, ...], masks: MaskThread, steering: Steering | None = None
    ) -> None:
        self._constraint = constraint
        self._end_ids = end_ids
        self._masks = masks
        self._state = constraint.start
        self._steering = steering
        self._refused: frozenset[int] = frozenset()
        self._only: frozenset[int] | None = None
        self._next: tuple[int, Any] | None = None
        self._job: Future[Mask] | None = None
        self._ahead: list[_Ahead] = []

    def request_mask(self) -> None:
        """Begin to fill the mask for the next token, unless that has been done."""
        if self._job is None:
            self._job = self._masks.submit(self._constraint, self._state, self._end_ids, self._refused, self._only)

    @property
    def was_steered(self) -> bool:
        return self._steering is not None and self._steering.has_refused

    def refuses(self, token_id: int, left: int) -> bool:
        """The token would make the value too long for the `left` tokens after it: the position is sampled again."""
        if self._steering is None or token_id in self._end_ids:
            return False
        after = self._after(token_id)
        if after is None or not self._steering.refuses(self._state, token_id, after, left):
            return False
        self._refused |= {token_id}
        if len(self._refused) >= _PATIENCE:
            self._only = self._steering.way(self._state)
        self._job = None
        self.request_mask()
        return True

    @property
    def job(self) -> Future[Mask]:
        if self._job is None:
            self.request_mask()
        assert self._job is not None
        return self._job

    @property
    def is_done(self) -> bool:
        return self._constraint.is_done(self._state)

    def forced(self) -> bytes:
        """Marked bytes that must come next; b"" if there is a choice."""
        return self._constraint.forced(self._state)

    def walk(self, drafts: Sequence[int]) -> list[Future[Mask]]:
        """Begin the masks behind each draft, up to the first that ends the reply or that the grammar forbids."""
        self._ahead = []
        state = self._state
        for token_id in drafts:
            state = None if token_id in self._end_ids else self._constraint.advance(state, token_id)
            if state is None:
                break
            job = self._masks.submit(self._constraint, state, self._end_ids)
            self._ahead.append(_Ahead(token_id, state, job))
        return [each.mask for each in self._ahead]

    def draft_masks(self, n_drafts: int) -> list[Mask]:
        """The masks behind the first drafts walked; they must be ready."""
        return [each.mask.result() for each in self._ahead[:n_drafts]]

    def advance(self, token_id: int) -> bool:
        """False: the grammar doesn't allow the token. The mask asked for before is void."""
        if token_id in self._end_ids:
            return self.is_done
        state = self._after(token_id)
        if state is None:
            return False
        self._state = state
        self._next = None
        self._refused = frozenset()
        self._only = None
        self._job = None
        if self._ahead:
            first = self._ahead.pop(0)
            if first.token_id == token_id:
                self._job = first.mask
            else:
                self._ahead = []
        return True

    def _after(self, token_id: int) -> Any | None:
        """The state behind the token, worked out once."""
        if self._next is None or self._next[0] != token_id:
            known = self._ahead and self._ahead[0].token_id == token_id
            after = self._ahead[0].state if known else self._constraint.advance(self._state, token_id)
            self._next = (token_id, after)
        return self._next[1]


class MaskThread:
    """Owner of the one thread that starts grammars and fills masks while the model's forward runs."""

    def __init__(self, vocab_size: int, make: MakeConstraint) -> None:
        self._n_words = -(-vocab_size // 32)
        self._make = make
        self._pool = ThreadPoolExecutor(1, "imp-mask")

    def start(self, plan: GrammarPlan) -> Future[Constraint]:
        return self._pool.submit(self._make, plan)

    def submit(
        self,
        constraint: Constraint,
        state: Any,
        end_ids: tuple[int, ...],
        refused: frozenset[int] = frozenset(),
        only: frozenset[int] | None = None,
    ) -> Future[Mask]:
        """`refused`: ids left out although the grammar allows them. `only`: nothing but these and a possible end."""
        return self._pool.submit(self._fill, constraint, state, end_ids, refused, only)

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fill(
        self,
        constraint: Constraint,
        state: Any,
        end_ids: tuple[int, ...],
        refused: frozenset[int],
        only: frozenset[int] | None,
    ) -> Mask:
        mask = np.zeros(self._n_words, dtype=np.uint32)
        if only is None:
            constraint.fill_mask(state, mask)
        else:
            for token_id in only:
                mask[token_id // 32] |= np.uint32(1 << (token_id % 32))
        may_end = constraint.is_done(state)
        for token_id in end_ids:
            bit = np.uint32(1 << (token_id % 32))
            if may_end:
                mask[token_id // 32] |= bit
            else:
                mask[token_id // 32] &= ~bit
        for token_id in refused:
            mask[token_id // 32] &= ~np.uint32(1 << (token_id % 32))
        return mask


def wait_for_some(jobs: Iterable[Future[Mask]], timeout_s: float) -> None:
    """Until one of the masks is ready."""
    wait(list(jobs), timeout_s, FIRST_COMPLETED)


def wait_for_all(jobs: Iterable[Future[Mask]], timeout_s: float) -> None:
    wait(list(jobs), timeout_s)
