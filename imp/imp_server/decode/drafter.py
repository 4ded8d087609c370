"""What proposes tokens ahead of the model: forced text of a grammar, n-grams, a prediction, a draft model.

Drafts never change the output (decode/verify.py), so a drafter may guess freely; whether and how long to
draft is decided by cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from imp_server.decode.state import SamplerState

ANY_ROWS = 1 << 30
Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]
NO_IDS: Int32s = np.empty(0, dtype=np.int32)


class Draft(NamedTuple):
    """`ids` may follow the row's history; empty = no idea. `is_prediction`: they come from the client's own text."""

    ids: Int32s = NO_IDS
    is_prediction: bool = False
    odds: tuple[float, ...] = ()
    """Of each id, that it is accepted once those before it are; empty: the drafter can't tell them apart."""


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class DraftedRow:
    """What drafters may look at."""

    sampler: SamplerState
    prediction: Int32s = field(default_factory=lambda: NO_IDS)
    """Ids that the client expects in the reply."""
    forced: Callable[[], bytes] | None = None
    """Bytes that the row's grammar demands next; b"" if there is a choice."""
    reuse_group: int = 0
    """Rows of one group may share what a drafter keeps of their texts."""


class RowDrafter(Protocol):
    """Owner of what a drafter remembers about one row."""

    silent_until: int
    """Output position before which it has nothing to say, so that nobody needs to ask."""

    def propose(self, limit: int) -> Draft:
        """At most `limit` ids. Asked before every step in which the row decodes and someone isn't silent."""
        ...

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        """What became of the last proposal, as far as it was tried; 0 drafted: it didn't seem worth its price."""
        ...

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        """After each step the model's last hidden state at the position in prompt and reply behind which the newest
        token was sampled; only if some drafter of the row `wants_hidden`."""
        ...

    def close(self) -> None:
        """The row is over."""
        ...


class Drafter(Protocol):
    """One way of guessing."""

    name: str
    confidence: float
    """Probability that one of its tokens is accepted, before anything is known about a row."""
    wants_hidden: bool
    most_rows: int
    """Rows of a step beyond which it isn't asked: guesses that are often wrong pay only where a few positions more cost
    next to nothing."""

    def start(self, row: DraftedRow) -> RowDrafter | None:
        """None: it will never have anything to say about this row."""
        ...


@runtime_checkable
class ModelLike(Protocol):
    """A drafter that runs a model: guessing costs, and costs less for many rows at once."""

    k: int
    """Longest draft."""

    def price_ms(self, n_rows: int) -> float:
        """Milliseconds that one drafted token of one of `n_rows` takes."""
        ...

    def behind_ms(self, row: RowDrafter) -> float:
        """Milliseconds until it can draft for the row: it has yet to read some of its text."""
        ...

    def propose_all(self, asked: Sequence[tuple[RowDrafter, int]]) -> list[Draft]:
        """A draft per row, of at most as many ids as asked for; takes the place of the rows' `propose`."""
        ...

    def counters(self) -> dict[str, float]:
        """For metrics, by name."""
        ...

    def close(self) -> None:
        """Release the model."""
        ...
