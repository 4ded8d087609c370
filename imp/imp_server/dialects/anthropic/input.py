"""Anthropic messages -> messages of a ChatRequest. Tool results leave the user turn they travel in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from imp_server.core import MediaPart, Message, Part, TextPart, ToolCall
from imp_server.dialects.anthropic.call_ids import call_id_of
from imp_server.dialects.anthropic.thinking import is_kept
from imp_server.dialects.intents import present

Block = Mapping[str, Any]

# Claude Code writes two hashes of the request into its first system block, one of them behind its version; they would
# make every prompt new from its first line, so that nothing could be taken from the prefix cache.
_BILLING = re.compile(r"^x-anthropic-billing-header:.*$", re.MULTILINE)
_BILLING_HASHES = re.compile(r"(\bcch=|\bcc_version=\d+\.\d+\.\d+[^.;\s]*\.)[0-9a-zA-Z]+")


def system_parts(system: str | Sequence[Block] | None) -> tuple[TextPart, ...]:
    if isinstance(system, str):
        system = [{"type": "text", "text": system}]
    return tuple(_text(_BILLING.sub(_without_hashes, block["text"]), block) for block in system or ())


def _without_hashes(header: re.Match[str]) -> str:
    return _BILLING_HASHES.sub(r"\g<1>0", header.group())


def marked(block: Block) -> bool:
    return block.get("cache_control") is not None


def for_hour(block: Block) -> bool:
    """The block's mark asks for an hour."""
    return marked(block) and block["cache_control"].get("ttl") == "1h"


def _text(text: str, block: Block) -> TextPart:
    """A text that is as marked as its block."""
    return TextPart(text, marked(block), for_hour(block))


def in_turns(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role, user or assistant, as one message: many templates know nothing but turns."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last is None or last.role != message.role or message.role not in ("user", "assistant"):
            found.append(message)
            continue
        found[-1] = Message(
            message.role,
            (*last.parts, *message.parts),
            "".join(text for text in (last.reasoning, message.reasoning) if text) or None,
            (*last.tool_calls, *message.tool_calls),
        )
    return found


def parts(content: str | Sequence[Block], path: str) -> tuple[Part, ...]:
    """Text and media of a user turn or of a tool result."""
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(part for i, block in enumerate(content) for part in _parts(block, f"{path}[{i}]"))


def _parts(block: Block, path: str) -> tuple[Part, ...]:
    kind = block["type"]
    if kind == "text":
        return (_text(block["text"], block),)
    if kind == "search_result":
        head = f"{block['title']} ({block['source']})\n"
        blocks = (block, *block["content"])
        text = head + "\n".join(part["text"] for part in block["content"])
        return (TextPart(text, any(map(marked, blocks)), any(map(for_hour, blocks))),)
    if kind == "document":
        return _document(block, path)
    if kind == "tool_reference":
        return (_text(block["tool_name"], block),)
    return (MediaPart(kind, path),)


def _document(block: Block, path: str) -> tuple[Part, ...]:
    source = block["source"]
    title = f"{block['title']}\n" if block.get("title") else ""
    if source["type"] == "text":
        return (_text(title + source["data"], block),)
    if source["type"] == "content":
        inner = parts(source["content"], f"{path}.source.content")
        inner = (TextPart(title), *inner) if title else inner
        return _marked_at_the_end(inner, block) if marked(block) else inner
    return (MediaPart("document", path),)


def _marked_at_the_end(inner: tuple[Part, ...], block: Block) -> tuple[Part, ...]:
    """The parts of a block that is marked itself."""
    if not inner or not isinstance(inner[-1], TextPart):
        return inner
    return (*inner[:-1], _text(inner[-1].text, block))


def user_messages(content: str | Sequence[Block], path: str) -> list[Message]:
    """In the order of the blocks: each tool result is a message of its own, the rest are user messages."""
    if isinstance(content, str):
        return [Message("user", (TextPart(content),))]
    found: list[Message] = []
    loose: list[Part] = []
    for i, block in enumerate(content):
        here = f"{path}[{i}]"
        if block["type"] != "tool_result":
            loose += _parts(block, here)
            continue
        if loose:
            found.append(Message("user", tuple(loose)))
            loose = []
        found.append(_tool_result(block, here))
    if loose or not found:
        found.append(Message("user", tuple(loose)))
    return found


def _tool_result(block: Block, path: str) -> Message:
    content = present(block, "content", "")
    if block.get("is_error") and not content:
        content = "Error"  # an empty result would read as success
    # No content and empty content are the same, also to a template that tells no parts from an empty one.
    inner = parts(content, f"{path}.content") or (TextPart(""),)
    if marked(block):
        inner = _marked_at_the_end(inner, block)
    return Message("tool", inner, tool_call_id=call_id_of(block["tool_use_id"]))


def _is_hosted(kind: str) -> bool:
    """A record of a tool that only Anthropic's servers run."""
    return kind.startswith(("server_tool", "mcp_tool")) or kind.endswith("_tool_result")


def assistant_message(content: str | Sequence[Block], path: str) -> Message:
    if isinstance(content, str):
        return Message("assistant", (TextPart(content),))
    reasoning: list[str] = []
    said: list[Part] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(content):
        here = f"{path}[{i}]"
        kind = block["type"]
        if kind == "thinking":
            if is_kept(block["thinking"], block.get("signature"), here):
                reasoning.append(block["thinking"])
        elif kind == "tool_use":
            arguments = json.dumps(block["input"], ensure_ascii=False)
            calls.append(ToolCall(call_id_of(block["id"]), block["name"], arguments, marked(block), for_hour(block)))
        elif kind != "redacted_thinking" and not _is_hosted(kind):
            said += _parts(block, here)
    return Message("assistant", tuple(said), "".join(reasoning) or None, tuple(calls))
