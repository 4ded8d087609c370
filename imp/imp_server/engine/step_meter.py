"""What steps did: rows and tokens since the start, and rates over the last ten seconds, which no question resets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.schedule.rows import Chunk

WINDOW_S = 10


@dataclass(slots=True)
class _Second:
    """Of one second."""

    number: int
    n_steps: int = 0
    n_rows: int = 0
    n_prompt: int = 0
    n_written: int = 0
    prompt_ms: float = 0.0
    decode_ms: float = 0.0


class StepMeter:
    """Owner of the counts. Told once per step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: deque[_Second] = deque()
        self._n_decode_steps = self._n_decode_rows = self._n_mixed = 0
        self._most_rows = self._last_rows = self._longest = 0

    def note(self, chunks: Sequence[Chunk], n_written: Sequence[int], elapsed_ms: float) -> None:
        """`n_written`: tokens that came of each chunk. The step's time is shared out by the tokens computed."""
        decoding = [c for c in chunks if c.start >= c.row.sampler.n_prompt]
        n_decoded = sum(c.n_tokens + c.n_drafts for c in decoding)
        n_tokens = sum(c.n_tokens + c.n_drafts for c in chunks)
        if decoding:
            self._n_decode_steps += 1
            self._n_decode_rows += len(decoding)
            self._most_rows = max(self._most_rows, len(decoding))
            self._n_mixed += len(decoding) < len(chunks)
        self._last_rows = len(decoding)
        self._longest = max(self._longest, *(c.start + c.n_tokens for c in chunks))
        second = self._now()
        second.n_steps += 1
        second.n_rows += len(chunks)
        second.n_prompt += n_tokens - n_decoded
        second.n_written += sum(n for c, n in zip(chunks, n_written, strict=True) if c.start >= c.row.sampler.n_prompt)
        second.decode_ms += elapsed_ms * n_decoded / n_tokens
        second.prompt_ms += elapsed_ms * (n_tokens - n_decoded) / n_tokens

    def _now(self) -> _Second:
        number = int(self._clock())
        self._forget(number)
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(_Second(number))
        return self._seconds[-1]

    def _forget(self, number: int) -> None:
        while self._seconds and self._seconds[0].number <= number - WINDOW_S:
            self._seconds.popleft()

    def counters(self) -> dict[str, float]:
        """For metrics, by name. Rates are per second of work, 0 where there was none."""
        self._forget(int(self._clock()))
        seconds = list(self._seconds)
        prompt_s, decode_s = (sum(getattr(s, name) for s in seconds) / 1e3 for name in ("prompt_ms", "decode_ms"))
        return {
            "decode_batch_steps_total": float(self._n_decode_steps),
            "decode_batch_rows_total": float(self._n_decode_rows),
            "decode_batch_max": float(self._most_rows),
            "decode_batch_last_rows": float(self._last_rows),
            "mixed_decode_steps_total": float(self._n_mixed),
            "longest_row_tokens": float(self._longest),
            "kv_block_tokens": float(BLOCK_TOKENS),
            "recent_prompt_tokens_per_s": _ratio(sum(s.n_prompt for s in seconds), prompt_s),
            "recent_written_tokens_per_s": _ratio(sum(s.n_written for s in seconds), decode_s),
            "recent_rows_per_step": _ratio(sum(s.n_rows for s in seconds), sum(s.n_steps for s in seconds)),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
