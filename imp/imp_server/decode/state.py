"""What sampling knows about one row: parameters, history, the running values of stateful samplers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from imp_server.core import SamplingParams


class SamplerState:
    """Owner of one row's token history. The engine appends; backends read, never write."""

    __slots__ = ("_history", "choice", "length", "mirostat_mu", "n_gone", "n_prompt", "params", "token_bytes")

    def __init__(
        self,
        params: SamplingParams,
        choice: int,
        prompt: NDArray[np.int32],
        capacity: int,
        token_bytes: Sequence[bytes] = (),
    ) -> None:
        """`capacity`: most tokens the row can ever hold, prompt included. `token_bytes`: what each id writes."""
        self.token_bytes = token_bytes
        self.params = params
        self.choice = choice
        self.n_prompt = len(prompt)
        self.length = len(prompt)
        self.n_gone = 0
        """Output ids that the history has lost."""
        self.mirostat_mu = 2.0 * params.mirostat_tau
        self._history = np.empty(max(capacity, len(prompt)), dtype=np.int32)
        self._history[: len(prompt)] = prompt

    @property
    def capacity(self) -> int:
        """Most tokens it can hold."""
        return len(self._history)

    @property
    def history(self) -> NDArray[np.int32]:
        """Prompt ids followed by output ids."""
        return self._history[: self.length]

    @property
    def output(self) -> NDArray[np.int32]:
        return self._history[self.n_prompt : self.length]

    @property
    def position(self) -> int:
        """Output position of the next token: the low half of the noise counter."""
        return self.length - self.n_prompt + self.n_gone

    def shift(self, keep: int, discard: int) -> None:
        """Drop `discard` ids behind the first `keep`. Output positions, and so the noise, go on counting."""
        n_of_prompt = max(0, min(self.n_prompt, keep + discard) - keep)
        self._history[keep : self.length - discard] = self._history[keep + discard : self.length].copy()
        self.length -= discard
        self.n_prompt -= n_of_prompt
        self.n_gone += discard - n_of_prompt
        least = max(0, self.params.min_tokens - (discard - n_of_prompt))
        self.params = replace(self.params, min_tokens=least)

    def as_of(self, length: int, then: Sequence[int] = ()) -> SamplerState:
        """A copy as if the history were its first `length` ids followed by `then`."""
        twin = SamplerState(
            self.params, self.choice, self._history[: self.n_prompt], length + len(then), self.token_bytes
        )
        twin.append([*self._history[self.n_prompt : length].tolist(), *then])
        twin.mirostat_mu, twin.n_gone = self.mirostat_mu, self.n_gone
        return twin

    def append(self, ids: Iterable[int]) -> None:
        for token_id in ids:
            self._history[self.length] = token_id
            self.length += 1
