"""Output items under construction: each knows its own opening, growing and closing events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from imp_server.core import LogprobEntry
from imp_server.dialects.free_form import InputReader
from imp_server.dialects.openai.usage import token_text
from imp_server.dialects.sealed import seal

Json = dict[str, Any]


class Item(Protocol):
    """`index` is the item's output_index; events carry no sequence_number yet."""

    index: int

    def open(self) -> Iterator[Json]: ...

    def close(self, status: str) -> Iterator[Json]: ...

    def snapshot(self, status: str) -> Json:
        """The item as JSON; what it holds so far if it is still open."""
        ...


def token_logprob(entry: LogprobEntry) -> Json:
    return _logprob(entry.data, entry.logprob) | {
        "top_logprobs": [_logprob(data, logprob) for _, data, logprob in entry.top]
    }


def _logprob(data: bytes, logprob: float) -> Json:
    return {"token": token_text(data), "bytes": list(data), "logprob": min(logprob, 0.0)}


@dataclass(slots=True)
class MessageItem:
    id: str
    index: int
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)

    def _at(self, kind: str, **rest: Any) -> Json:
        return {"type": kind, "item_id": self.id, "output_index": self.index, "content_index": 0, **rest}

    def _part(self, text: str, logprobs: list[Json]) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def snapshot(self, status: str) -> Json:
        content = [self._part("".join(self.pieces), self.logprobs)]
        return {"type": "message", "id": self.id, "role": "assistant", "status": status, "content": content}

    def open(self) -> Iterator[Json]:
        item = self.snapshot("in_progress") | {"content": []}
        yield {"type": "response.output_item.added", "output_index": self.index, "item": item}
        yield self._at("response.content_part.added", part=self._part("", []))

    def grow(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        self.pieces.append(text)
        self.logprobs += logprobs
        yield self._at("response.output_text.delta", delta=text, logprobs=logprobs)

    def close(self, status: str) -> Iterator[Json]:
        text = "".join(self.pieces)
        yield self._at("response.output_text.done", text=text, logprobs=self.logprobs)
        yield self._at("response.content_part.done", part=self._part(text, self.logprobs))
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.snapshot(status)}


@dataclass(slots=True)
class ReasoningItem:
    """Raw text as `content`; as `summary` for clients that asked for one, which then don't see it twice."""

    id: str
    index: int
    summarised: bool
    sealed: bool
    pieces: list[str] = field(default_factory=list)

    def _at(self, kind: str, **rest: Any) -> Json:
        place = "summary_index" if self.summarised else "content_index"
        return {"type": kind, "item_id": self.id, "output_index": self.index, place: 0, **rest}

    def _part(self, text: str) -> Json:
        return {"type": "summary_text" if self.summarised else "reasoning_text", "text": text}

    @property
    def _names(self) -> tuple[str, str]:
        """Event prefixes of the part and of its text."""
        if self.summarised:
            return "response.reasoning_summary_part", "response.reasoning_summary_text"
        return "response.content_part", "response.reasoning_text"

    def snapshot(self, status: str) -> Json:
        text = "".join(self.pieces)
        parts = [self._part(text)]
        return {
            "type": "reasoning",
            "id": self.id,
            "summary": parts if self.summarised else [],
            "content": [] if self.summarised else parts,
            "encrypted_content": seal("reasoning", text) if self.sealed and text else None,
            "status": status,
        }

    def open(self) -> Iterator[Json]:
        item = self.snapshot("in_progress") | {"summary": [], "content": []}
        yield {"type": "response.output_item.added", "output_index": self.index, "item": item}
        yield self._at(f"{self._names[0]}.added", part=self._part(""))

    def grow(self, text: str) -> Iterator[Json]:
        self.pieces.append(text)
        yield self._at(f"{self._names[1]}.delta", delta=text)

    def close(self, status: str) -> Iterator[Json]:
        text = "".join(self.pieces)
        yield self._at(f"{self._names[1]}.done", text=text)
        yield self._at(f"{self._names[0]}.done", part=self._part(text))
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.snapshot(status)}


@dataclass(slots=True)
class CallItem:
    id: str
    index: int
    call_id: str
    name: str
    namespace: str | None
    pieces: list[str] = field(default_factory=list)

    def _at(self, kind: str, **rest: Any) -> Json:
        return {"type": kind, "item_id": self.id, "output_index": self.index, **rest}

    def snapshot(self, status: str) -> Json:
        item = {
            "type": "function_call",
            "id": self.id,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "".join(self.pieces),
            "status": status,
        }
        return item if self.namespace is None else item | {"namespace": self.namespace}

    def open(self) -> Iterator[Json]:
        yield {
            "type": "response.output_item.added",
            "output_index": self.index,
            "item": self.snapshot("in_progress") | {"arguments": ""},
        }

    def grow(self, text: str) -> Iterator[Json]:
        self.pieces.append(text)
        yield self._at("response.function_call_arguments.delta", delta=text)

    def close(self, status: str) -> Iterator[Json]:
        # `name` is required by OpenAI's OpenAPI and unknown to its SDK, which keeps it as an extra key.
        arguments = "".join(self.pieces)
        yield self._at("response.function_call_arguments.done", name=self.name, arguments=arguments)
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.snapshot(status)}


@dataclass(slots=True)
class CustomCallItem:
    """A call of a free-form tool."""

    id: str
    index: int
    call_id: str
    name: str
    namespace: str | None
    reader: InputReader = field(default_factory=InputReader)

    def _at(self, kind: str, **rest: Any) -> Json:
        return {"type": kind, "item_id": self.id, "output_index": self.index, **rest}

    def snapshot(self, status: str) -> Json:
        item = {
            "type": "custom_tool_call",
            "id": self.id,
            "call_id": self.call_id,
            "name": self.name,
            "input": self.reader.text,
            "status": status,
        }
        return item if self.namespace is None else item | {"namespace": self.namespace}

    def open(self) -> Iterator[Json]:
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self.snapshot("in_progress")}

    def grow(self, text: str) -> Iterator[Json]:
        if more := self.reader.feed(text):
            yield self._at("response.custom_tool_call_input.delta", delta=more)

    def close(self, status: str) -> Iterator[Json]:
        if status == "completed" and (more := self.reader.rest()):
            yield self._at("response.custom_tool_call_input.delta", delta=more)
        yield self._at("response.custom_tool_call_input.done", input=self.reader.text)
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.snapshot(status)}
