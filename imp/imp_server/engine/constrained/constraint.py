"""What the loop needs of a grammar. The mask thread (masking.py) and one row's place (grammar_row.py) build on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from imp_server.core import GrammarPlan

Mask = NDArray[np.uint32]


class Constraint(Protocol):
    """One grammar over one vocabulary (grammar.places.Places). Places are shared by rows; their meaning never changes.

    Called from the step loop with `patience_s`, from the mask thread without. A question with patience raises
    TimeoutError where the answer isn't known and would take longer: the loop then leaves it to the mask thread.
    """

    @property
    def start(self) -> Any: ...

    @property
    def after_closing(self) -> Any | None:
        """The place behind a thinking that was closed by force; None: where the closer leads by itself."""
        ...

    def step(self, place: Any, token_id: int, patience_s: float | None = None) -> Any | None:
        """The place behind the token; None: it isn't allowed here."""
        ...

    def past_early(self, place: Any, patience_s: float | None = None) -> Any:
        """The same place once the completion's first tokens are over (OutputPlan.n_early)."""
        ...

    def n_out(self, place: Any, patience_s: float | None = None) -> int:
        """Tokens of the shortest way to the end; huge if none is known."""
        ...

    def route(self, place: Any, patience_s: float | None = None) -> Sequence[int]:
        """Ids of that way; empty if none is known."""
        ...

    def known_mask(self, place: Any) -> Mask | None:
        """The bits of allowed ids if they are known; not to be written to. The plan's end ids are the caller's."""
        ...

    def mask(self, place: Any) -> Mask:
        """The same, worked out if need be."""
        ...

    def fitting(self, place: Any, n_left: int) -> tuple[Mask, bool]:
        """The mask without tokens behind which the end isn't within `n_left` tokens, and whether that took any."""
        ...

    def is_done(self, place: Any) -> bool:
        """The completion may end here."""
        ...

    def forced(self, place: Any, patience_s: float | None = None) -> bytes:
        """Marked bytes that must come next; b"" if there is a choice."""
        ...


MakeConstraint = Callable[[GrammarPlan], Constraint]
"""Raises GrammarRefused."""
