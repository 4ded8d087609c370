"""What a scripted engine plays: tokens, delays, gates, errors and crashes; and a vocabulary to play them in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from imp_server.core import GenerateRequest, ImpError, TokenLogprob
from imp_server.vocab.table import Vocabulary


@dataclass(frozen=True, slots=True)
class Emit:
    """Tokens that arrive in one hand-off. `logprobs`: one per id; invented (0.0) if absent."""

    ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class ScriptGate:
    """The play goes on when the test sets `event`."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Report progress of the prompt: tokens done, of them from the cache (-1 = not said), new in the cache."""

    n_prefilled: int
    n_cached: int = -1
    n_to_cache: int = 0


@dataclass(frozen=True, slots=True)
class PlayedVectors:
    """What an embedding or a scoring request gets (float32 bytes)."""

    vectors: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """The whole request fails with this error."""

    error: ImpError


@dataclass(frozen=True, slots=True)
class Crash:
    """The engine dies under all its requests, and comes back."""


Action = int | Sequence[int] | Emit | Wait | ScriptGate | Prefilled | PlayedVectors | Fail | Crash
"""An int is one token in a hand-off of its own; a sequence of ints one hand-off per token."""
Player = Callable[[GenerateRequest, int], Iterable[Action]]
"""(request, choice) -> its play."""


def byte_vocabulary(*specials: str, size: int = 0) -> Vocabulary:
    """Ids 0-255 write their byte, the specials follow, padding ids up to `size`. The first special is the end id."""
    n_named = 256 + len(specials)
    pieces: list[bytes | None] = [bytes([i]) for i in range(256)]
    pieces += [None] * (max(n_named, size) - 256)
    return Vocabulary(
        pieces,
        {256 + i: text for i, text in enumerate(specials)},
        end_ids=(256,) if specials else (),
    )


def text_ids(text: str) -> tuple[int, ...]:
    """The ids of `text` in a byte vocabulary."""
    return tuple(text.encode())
