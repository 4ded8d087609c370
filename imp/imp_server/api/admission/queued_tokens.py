"""Prompt tokens that were let in and aren't computed yet: a limit on how much work may wait."""

from __future__ import annotations

from imp_server.core import Overloaded


class QueuedTokens:
    """Owner of their number."""

    def __init__(self, limit: int) -> None:
        """0 = no limit; they are counted all the same."""
        self._limit = limit
        self.n_tokens = 0

    def take(self, n_tokens: int) -> TokenClaim:
        """Raises Overloaded if they are too many beside those that wait. Where nothing waits, any number may."""
        if self._limit and self.n_tokens and self.n_tokens + n_tokens > self._limit:
            raise Overloaded(
                f"Server overloaded: {self.n_tokens} prompt tokens wait to be computed, and {n_tokens} more would be "
                f"too many (--max-queued-tokens {self._limit})",
                retry_after_s=1.0,
            )
        self.n_tokens += n_tokens
        return TokenClaim(self, n_tokens)


class TokenClaim:
    """The tokens of one request's prompts that aren't computed yet."""

    def __init__(self, queued: QueuedTokens, n_tokens: int) -> None:
        self._queued = queued
        self._n_left = n_tokens

    def release(self, n_tokens: int | None = None) -> None:
        """So many are computed, or not wanted any more; None: the rest."""
        n_tokens = self._n_left if n_tokens is None else min(n_tokens, self._n_left)
        self._n_left -= n_tokens
        self._queued.n_tokens -= n_tokens
