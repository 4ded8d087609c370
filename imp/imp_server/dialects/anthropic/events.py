"""OutputEvents -> content blocks. Fold and Stream both run this, so they can't differ.

One block is open at a time and indexes are dense: a block gets its index when it opens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from imp_server.core import (
    Accepted,
    CallArgs,
    CallEnd,
    CallStart,
    Finish,
    OutputEvent,
    Progress,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from imp_server.dialects.anthropic.call_ids import tool_use_id
from imp_server.dialects.anthropic.thinking import Signer
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.intents import present
from imp_server.dialects.timings import speculation_details, timings_body

Json = dict[str, Any]


@dataclass(slots=True)
class _ContentBlock:
    kind: str
    head: Json
    """The block as content_block_start shows it."""
    pieces: list[str] = field(default_factory=list)
    signer: Signer = field(default_factory=Signer)

    def grow(self, text: str) -> None:
        self.pieces.append(text)
        if self.kind == "thinking":
            self.signer.feed(text)

    def whole(self) -> Json:
        text = "".join(self.pieces)
        if self.kind == "text":
            return self.head | {"text": text}
        if self.kind == "thinking":
            return self.head | {"thinking": text, "signature": self.signer.signature()}
        return self.head | {"input": _object(text)}


def _object(text: str) -> Any:
    """Of arguments that are whole. What is too deep or too long for Python's parser is sent on as it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return msgspec.Raw(text.encode()) if text else {}


class MessageEvents:
    """Owner of the content blocks of one message."""

    def __init__(self, ctx: ReplyContext) -> None:
        self._ctx = ctx
        self._done: list[Json] = []
        self._open: _ContentBlock | None = None
        self._index = 0
        """Of the next block to be closed."""
        self._finish = Finish(0, "cancelled", Usage())
        """What a message is that was stopped before its end."""
        self._is_open = False
        self._at_start: Usage = ctx.accepted.usage
        """What message_start says: of the row that starts, or as things stood when the request was accepted."""
        self._hidden = present(ctx.body, "thinking", {}).get("display") == "omitted"

    # --- the life of a message

    def open(self) -> list[Json]:
        """Nothing if it is open."""
        if self._is_open:
            return []
        self._is_open = True
        return [{"type": "message_start", "message": self._message(self._usage(self._at_start))}, {"type": "ping"}]

    def feed(self, event: OutputEvent) -> list[Json]:
        if isinstance(event, Accepted) and not self._is_open:
            self._at_start = Usage(
                prompt_tokens=event.prompt_tokens,
                cached_tokens=event.cached_tokens,
                cache_write_tokens=event.cache_write_tokens,
            )
        return [*self.open(), *self._events(event)]

    def close(self) -> list[Json]:
        delta = self._stop() | {"stop_details": None, "container": None}
        end = {"type": "message_delta", "delta": delta, "usage": self._usage(self._finish.usage)}
        return [*self.open(), end | self._timings(), {"type": "message_stop"}]

    def message(self) -> Json:
        return self._message(self._usage(self._finish.usage)) | self._stop() | self._timings()

    def _timings(self) -> Json:
        if self._ctx.habits == "llama-server":
            return {}  # there this dialect has none
        return {"timings": timings_body(self._finish.usage, self._finish.timings)}

    def _message(self, usage: Json) -> Json:
        return {
            "id": self._ctx.id,
            "type": "message",
            "role": "assistant",
            "model": self._ctx.model,
            "content": list(self._done),
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage
            | {"service_tier": "standard", "server_tool_use": None}
            | {"cache_creation": _written(usage, self._ctx.accepted.hour_until)},
        }

    # --- one event

    def _events(self, event: OutputEvent) -> Iterator[Json]:
        match event:
            case Progress():
                yield {"type": "ping"}
            case ReasoningDelta(text=text) if text:
                yield from self._thinking(text)
            case TextDelta(text=text) if text:
                yield from self._switch("text", {"type": "text", "text": ""})
                yield from self._delta("text_delta", "text", text)
            case CallStart():
                yield from self._close_block()
                call = {"type": "tool_use", "id": tool_use_id(event.id), "name": event.name, "input": {}}
                yield from self._switch("tool_use", call)
            case CallArgs(text=text) if text:
                yield from self._delta("input_json_delta", "partial_json", text)
            case CallEnd():
                yield from self._close_block(is_cut=event.is_cut)
            case Finish():
                self._finish = event
                yield from self._close_block(is_cut=self._open is not None and self._open.kind == "tool_use")

    def _thinking(self, text: str) -> Iterator[Json]:
        yield from self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if not self._hidden:
            yield from self._delta("thinking_delta", "thinking", text)

    def _switch(self, kind: str, head: Json) -> Iterator[Json]:
        if self._open and self._open.kind == kind:
            return
        yield from self._close_block()
        self._open = _ContentBlock(kind, head)
        yield {"type": "content_block_start", "index": self._index, "content_block": head}

    def _delta(self, kind: str, name: str, text: str) -> Iterator[Json]:
        assert self._open
        self._open.grow(text)
        yield self._block_delta({"type": kind, name: text})

    def _block_delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close_block(self, *, is_cut: bool = False) -> Iterator[Json]:
        """A call that is cut has no input that could be shown whole: it stays out of the message."""
        block, self._open = self._open, None
        if not block:
            return
        if block.kind == "thinking":
            yield self._block_delta({"type": "signature_delta", "signature": block.signer.signature()})
        yield {"type": "content_block_stop", "index": self._index}
        self._index += 1
        if not is_cut:
            self._done.append(block.whole())

    def _stop(self) -> Json:
        """A cut wins over a call; a call wins over how the text ended."""
        finish, sequence = self._finish, None
        if finish.reason == "length":
            reason = "model_context_window_exceeded" if self._is_full() else "max_tokens"
        elif finish.detail != "call_cut" and any(block["type"] == "tool_use" for block in self._done):
            reason = "tool_use"
        elif finish.stop_sequence is not None:
            reason, sequence = "stop_sequence", finish.stop_sequence
        else:
            reason = "end_turn"
        detail = {} if finish.detail is None else {"imp_finish_detail": finish.detail}
        return {"stop_reason": reason, "stop_sequence": sequence} | detail

    def _is_full(self) -> bool:
        """It was the context that ended it."""
        usage, limit = self._finish.usage, self._ctx.extra.get("context_length")
        return limit is not None and usage.prompt_tokens + usage.completion_tokens >= int(limit)

    # --- usage

    def _usage(self, counts: Usage) -> Json:
        """`input_tokens` excludes what was read from or written to the cache.

        Every prompt fills the prefix cache here; a write is counted as far as the last cache_control asked for one.
        """
        written = min(counts.cache_write_tokens, max(0, self._ctx.accepted.pin_until - counts.cached_tokens))
        evicted = {"evicted_tokens": counts.evicted_tokens} if counts.evicted_tokens else {}
        return {
            "input_tokens": counts.prompt_tokens - counts.cached_tokens - written,
            "output_tokens": counts.completion_tokens,
            "cache_read_input_tokens": counts.cached_tokens,
            "cache_creation_input_tokens": written,
            "output_tokens_details": {
                "thinking_tokens": counts.reasoning_tokens,
                "reasoning_tokens": counts.reasoning_tokens,
                **speculation_details(counts),
            },
            **evicted,
        }


def _written(usage: Json, hour_until: int) -> Json:
    """What was written by how long it was asked to stay: a prefix as long as the longest mark behind it says."""
    n_written = usage["cache_creation_input_tokens"]
    n_hour = min(n_written, max(0, hour_until - usage["cache_read_input_tokens"]))
    return {"ephemeral_5m_input_tokens": n_written - n_hour, "ephemeral_1h_input_tokens": n_hour}
