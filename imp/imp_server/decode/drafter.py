"""What proposes tokens ahead of the model: forced text of a grammar, n-grams, a prediction, a draft model.

Drafts never change the output (decode/verify.py), so a drafter may guess freely; whether and how long to
draft is decided by cost.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from imp_server.decode.state import SamplerState


class Drafter(Protocol):
    """One way of guessing."""

    name: str

    def propose(self, row: SamplerState, limit: int) -> NDArray[np.int32]:
        """At most `limit` ids that may follow the row's history; empty = no idea."""
        ...
