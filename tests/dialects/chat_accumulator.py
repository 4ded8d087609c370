"""What a client makes of a chat stream: a chat.completion, checking the rules that clients rely on."""

from __future__ import annotations

import json
from typing import Any

from imp_server.dialects.base import SseFrame


def accumulate(frames: list[SseFrame]) -> dict[str, Any]:
    """Raises AssertionError for a stream that would break a client."""
    assert all(frame.event is None for frame in frames)
    assert frames[-1].data == b"[DONE]"
    chunks = [json.loads(frame.data) for frame in frames[:-1]]
    same = ("id", "created", "model", "system_fingerprint")
    assert all(all(chunk[k] == chunks[0][k] for k in same) for chunk in chunks)
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    usage, timings = None, chunks[-1].pop("timings")
    assert not any("timings" in chunk for chunk in chunks)
    if not chunks[-1]["choices"]:
        usage = chunks.pop()["usage"]
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    choices: list[dict[str, Any]] = []
    for chunk in chunks:
        [part] = chunk["choices"]
        if part["index"] == len(choices):
            choices.append(_opened(part))
        _add(choices[part["index"]], part)
    for choice in choices:
        _close(choice)
    head = {key: chunks[0][key] for key in same}
    return {**head, "object": "chat.completion", "choices": choices, "usage": usage, "timings": timings}


def _opened(part: dict[str, Any]) -> dict[str, Any]:
    assert part["delta"] == {"role": "assistant", "content": "", "refusal": None}
    message: dict[str, Any] = {"role": "", "content": "", "refusal": None, "annotations": []}
    return {"index": part["index"], "message": message, "finish_reason": None, "logprobs": None}


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    assert choice["finish_reason"] is None, "a delta after the end"
    message, delta = choice["message"], part["delta"]
    message["role"] += delta.get("role", "")
    message["content"] += delta.get("content") or ""
    for name in ("reasoning_content", "reasoning"):
        if name in delta:
            message[name] = message.get(name, "") + delta[name]
    for call in delta.get("tool_calls", ()):
        _add_call(message.setdefault("tool_calls", []), call)
    if part["logprobs"] is not None:
        if choice["logprobs"] is None:
            choice["logprobs"] = {"content": [], "refusal": None}
        choice["logprobs"]["content"] += part["logprobs"]["content"]
    if part["finish_reason"] is not None:
        assert delta == {}
        choice["finish_reason"] = part["finish_reason"]
        if "imp_finish_detail" in part:
            choice["imp_finish_detail"] = part["imp_finish_detail"]


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    if part["index"] == len(calls):
        assert set(part) == {"index", "id", "type", "function"}
        calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
        return
    assert set(part) == {"index", "function"} and set(part["function"]) == {"arguments"}
    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]


def _close(choice: dict[str, Any]) -> None:
    assert choice["finish_reason"] is not None
    message = choice["message"]
    if "tool_calls" in message and not message["content"]:
        message["content"] = None
