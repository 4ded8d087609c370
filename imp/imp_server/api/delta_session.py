"""Deltas of an engine -> OutputEvents: what its rows tell, and the text of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import (
    Accepted,
    LogprobEntry,
    OutputEvent,
    Progress,
    PromptLogprobs,
    Timings,
    TokenLogprob,
    Vectors,
    unpack_ids,
)
from imp_server.engine.messages import RowDelta, RowFinish
from imp_server.grammar.whole_schema import Unjudged
from imp_server.text.session import Prepared
from imp_server.vocab.table import Vocabulary

_EVENT_BYTES = 32 << 10
"""Of float32s."""


class DeltaSession:
    """Owner of the walk of a prepared request's OutputSession, and of the ids that came, by choice."""

    def __init__(self, prepared: Prepared) -> None:
        request = prepared.request
        self._request = request
        self._session = prepared.session
        self._remember = prepared.remember
        self._ids: dict[int, bytearray] = {}
        self._prompt_text = prepared.prompt_text
        self._prompt_tokens = len(request.ids) // 4
        self._owes_prompt = request.options.prompt_logprobs is not None

    def feed(self, delta: RowDelta) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        if self._owes_prompt and (delta.prompt_logprobs or delta.ids or delta.finish):
            self._owes_prompt = False
            events.append(
                prompt_event(self._request.ids, self._prompt_text, delta.prompt_logprobs, self._session.vocabulary)
            )
        if delta.vectors:
            events += _in_small_events(delta.choice, delta.vectors)
        if delta.n_cached >= 0:
            events.append(Accepted(delta.choice, self._prompt_tokens, delta.n_cached, delta.n_to_cache))
        if 0 <= delta.n_prefilled < self._prompt_tokens and not delta.ids:
            events.append(Progress(delta.choice, delta.n_prefilled, self._prompt_tokens))
        if delta.ids and self._remember is not None:
            self._ids.setdefault(delta.choice, bytearray()).extend(delta.ids)
        if delta.ids:
            events += self._session.push(delta.choice, delta.ids, delta.logprobs)
        if delta.finish is not None:
            events += self._finish(delta.choice, delta.finish)
        return events

    def unjudged(self, choice: int) -> Unjudged | None:
        """Of a choice that has finished: what is still to be held against its whole schema (grammar.lenient)."""
        return self._session.unjudged(choice)

    def _finish(self, choice: int, finish: RowFinish) -> list[OutputEvent]:
        if self._remember is not None and choice in self._ids:
            self._remember(unpack_ids(bytes(self._ids.pop(choice))), finish.stop_string)
        return self._session.finish(
            choice,
            finish.reason,
            finish.usage,
            finish.stop_string,
            finish.detail,
            Timings(finish.queue_ms, finish.prefill_ms, finish.decode_ms, finish.ttft_ms),
        )


def _in_small_events(choice: int, vectors: Sequence[bytes]) -> list[OutputEvent]:
    """Whoever writes one as JSON holds up the loop for less than 2 ms."""
    n = max(1, _EVENT_BYTES // len(vectors[0]))
    return [Vectors(choice, tuple(vectors[start : start + n])) for start in range(0, len(vectors), n)]


def prompt_event(packed: bytes, text: str, logprobs: Sequence[TokenLogprob], vocabulary: Vocabulary) -> PromptLogprobs:
    """`logprobs`: one per prompt token from the second on."""
    ids = unpack_ids(packed)
    pieces = [vocabulary.plain_bytes(i) for i in ids]
    if len(ids) > 1 and b"".join(pieces[1:]) == text.encode():
        pieces[0] = b""  # an opening token that the text doesn't show
    entries = tuple(
        LogprobEntry(
            entry.id,
            pieces[position],
            entry.logprob,
            tuple((i, vocabulary.plain_bytes(i), value) for i, value in entry.top),
            entry.rank,
        )
        for position, entry in enumerate(logprobs, start=1)
    )
    return PromptLogprobs(0, ids[0], pieces[0], entries)
