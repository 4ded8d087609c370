"""OutputEvents -> the events of one response, in order. Fold and Stream both run this, so they can't differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from imp_server.core import (
    Accepted,
    CallArgs,
    CallEnd,
    CallStart,
    Finish,
    ImpError,
    Logprobs,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.intents import present
from imp_server.dialects.openai.errors import error_type
from imp_server.dialects.openai_responses.items import (
    CallItem,
    CustomCallItem,
    Item,
    MessageItem,
    ReasoningItem,
    token_logprob,
)
from imp_server.dialects.openai_responses.resource import failure, resource, usage
from imp_server.dialects.openai_responses.tools import tool_table
from imp_server.dialects.progress import Underway
from imp_server.dialects.timings import timings_body

Json = dict[str, Any]


class ResponseEvents:
    """Owner of the output items and of the sequence number of one response."""

    def __init__(self, ctx: ReplyContext, now: Callable[[], float] = time.time) -> None:
        self._ctx = ctx
        self._now = now
        self._sequence = 0
        self._done: list[Json] = []
        self._open: Item | None = None
        self._logprobs: list[Json] = []
        self._finish: Finish | None = None
        self._final: Json | None = None
        self._so_far: Usage = ctx.accepted.usage
        """Of a response that is cancelled."""
        self._table = tool_table(ctx.body)
        self._is_queued = bool(present(ctx.body, "background", False))
        """Its turn hasn't come yet, which is told of those that are made without a client."""
        self._warms = bool(ctx.extra.get("warms"))
        """Only the prompt is computed: there is no answer, and that is its good end."""
        self._summarised = bool(present(ctx.body, "reasoning", {}).get("summary"))
        self._underway = Underway(ctx)
        self._n_tokens = 0
        """Of text and thinking, as far as their logprobs came."""
        self._shows_logprobs = shows_logprobs(ctx.body)
        self._sealed = "reasoning.encrypted_content" in present(ctx.body, "include", ())

    # --- the life of a response

    def open(self) -> list[Json]:
        start = self._so_far_made()
        kind = f"response.{start['status']}"
        return self._numbered([{"type": "response.created", "response": start}, {"type": kind, "response": start}])

    def feed(self, event: OutputEvent) -> list[Json]:
        began, self._is_queued = self._is_queued, False
        told = [{"type": "response.in_progress", "response": self._so_far_made()}] if began else []
        told += [
            {"type": "response.in_progress", "response": self._so_far_made()} | more
            for more in self._underway.feed(event)
        ]
        if isinstance(event, Logprobs):
            self._n_tokens += len(event.entries)
        return self._numbered([*told, *self._timed(self._events(event))])

    def _timed(self, events: Iterable[Json]) -> Iterator[Json]:
        for event in events:
            more = self._underway.timings(0, self._n_tokens) if event["type"].endswith(".delta") else {}
            yield event | more if more else event

    def close(self) -> list[Json]:
        final = self.response()
        if self._ctx.habits == "llama-server":  # it knows no other end, and tells how long it took beside it
            return self._numbered([{"type": "response.completed", "response": final, "timings": final["timings"]}])
        return self._numbered([{"type": f"response.{_terminal(final['status'])}", "response": final}])

    def fail(self, error: ImpError) -> list[Json]:
        """One event in both error shapes (OpenAI's is flat, Open Responses nests), then response.failed."""
        flat = {"code": error.code, "message": error.message, "param": error.param}
        return self._numbered(
            [
                {"type": "error", **flat, "error": {"type": error_type(error.status), **flat}},
                {"type": "response.failed", "response": self.as_failed(error)},
            ]
        )

    def as_failed(self, error: ImpError) -> Json:
        """The final resource behind an error. Idempotent."""
        if self._ctx.failed is None:
            self._final = resource(self._ctx, "failed", self.output("incomplete"), error=failure(error))
            self._ctx.failed = self._final
        return self._ctx.failed

    def snapshot(self) -> Json:
        """The resource as it is at this moment; a failed stream is known through the context only."""
        if self._ctx.failed:
            return dict(self._ctx.failed)
        if self._final or self._finish:
            return self.response()
        return self._so_far_made()

    def _so_far_made(self) -> Json:
        status = "queued" if self._is_queued else "in_progress"
        return resource(self._ctx, status, self.output("in_progress"))

    def cancel(self) -> Json:
        """Stops the generation; its rows are free when this returns."""
        if not self._finish and self._ctx.failed is None:
            self._ctx.accepted.cancel()
            return self.response()
        return self.snapshot()

    def response(self) -> Json:
        """The final resource. Without a Finish the generation was cancelled."""
        if self._final:
            return self._final
        if not self._finish:
            self._final = resource(self._ctx, "cancelled", self.output("incomplete"), usage=usage(self._so_far))
            return self._final
        status, details = self._outcome(self._finish)
        own: Json = {"timings": timings_body(self._finish.usage, self._finish.timings)}
        if self._finish.detail is not None:
            own["imp_finish_detail"] = self._finish.detail
        self._final = resource(
            self._ctx,
            status,
            self._done,
            usage=usage(self._finish.usage),
            completed_at=self._completed_at() if status == "completed" else None,
            incomplete_details=details,
            **own,
        )
        return self._final

    def output(self, status: str) -> list[Json]:
        """All items so far; `status` is that of the open one."""
        return self._done + ([self._open.snapshot(status)] if self._open else [])

    def _completed_at(self) -> int:
        """One moment for the streamed and the stored resource."""
        return int(self._ctx.extra.setdefault("completed_at", int(self._now())))

    # --- one event

    def _events(self, event: OutputEvent) -> Iterator[Json]:
        match event:
            case Accepted():
                self._so_far = Usage(
                    prompt_tokens=event.prompt_tokens,
                    cached_tokens=event.cached_tokens,
                    cache_write_tokens=event.cache_write_tokens,
                )
            case ReasoningDelta(text=text) if text:
                yield from self._reasoning(text)
            case TextDelta(text=text) if text:
                yield from self._text(text)
            case Logprobs(kind="text") if self._shows_logprobs:
                self._logprobs += [token_logprob(entry) for entry in event.entries]
            case CallStart():
                yield from self._call(event)
            case CallArgs(text=text) if text:
                assert isinstance(self._open, CallItem | CustomCallItem)
                yield from self._open.grow(text)
            case CallEnd():
                yield from self._close_item("incomplete" if event.is_cut else "completed")
            case Finish():
                yield from self._end(event)

    def _reasoning(self, text: str) -> Iterator[Json]:
        item = self._open
        if not isinstance(item, ReasoningItem):
            yield from self._close_item("completed")
            item = ReasoningItem(self._item_id("rs"), len(self._done), self._summarised, self._sealed)
            yield from self._open_item(item)
        yield from item.grow(text)

    def _text(self, text: str) -> Iterator[Json]:
        item = self._open
        if not isinstance(item, MessageItem):
            yield from self._close_item("completed")
            item = MessageItem(self._item_id("msg"), len(self._done))
            yield from self._open_item(item)
        logprobs, self._logprobs = self._logprobs, []
        yield from item.grow(text, logprobs)

    def _call(self, event: CallStart) -> Iterator[Json]:
        yield from self._close_item("completed")
        name, namespace = self._table.wire_name(event.name)
        item: Item
        if event.name in self._table.free_form:
            item = CustomCallItem(self._item_id("ctc"), len(self._done), event.id, name, namespace)
        else:
            item = CallItem(self._item_id("fc"), len(self._done), event.id, name, namespace)
        yield from self._open_item(item)

    def _end(self, event: Finish) -> Iterator[Json]:
        self._finish = event
        status, _ = self._outcome(event)
        has_spoken = self._open or any(item["type"] != "reasoning" for item in self._done)
        if not has_spoken and not self._warms and status == "completed":
            # An empty answer is still an answer: clients read output_text of the last message.
            yield from self._open_item(MessageItem(self._item_id("msg"), len(self._done)))
        if isinstance(self._open, MessageItem) and self._logprobs:
            yield from self._text("")
        yield from self._close_item("completed" if status == "completed" else "incomplete")

    # --- items

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._ctx.id.removeprefix('resp_')}_{len(self._done)}"

    def _open_item(self, item: Item) -> Iterator[Json]:
        self._open = item
        yield from item.open()

    def _close_item(self, status: str) -> Iterator[Json]:
        item, self._open = self._open, None
        if item:
            closing = list(item.close(status))  # the text of a custom call is whole only after this
            self._done.append(item.snapshot(status))
            yield from closing

    def _outcome(self, finish: Finish) -> tuple[str, Json | None]:
        """(status, incomplete_details)."""
        if finish.reason == "length" and not self._warms:
            return "incomplete", {"reason": "max_output_tokens"}
        return ("cancelled" if finish.reason == "cancelled" else "completed"), None

    def _numbered(self, events: list[Json] | Iterator[Json]) -> list[Json]:
        numbered = []
        for event in events:
            numbered.append(event | {"sequence_number": self._sequence})
            self._sequence += 1
        return numbered


def shows_logprobs(body: Mapping[str, Any]) -> bool:
    """The client wants to see them; they are also asked for where tokens are to be counted."""
    return body.get("top_logprobs") is not None or "message.output_text.logprobs" in present(body, "include", ())


def _terminal(status: str) -> str:
    """The event that ends the stream; there is none for `cancelled` in any published contract."""
    return "completed" if status == "completed" else "incomplete"
