"""Accumulators for streams, as strict as the official SDKs: what a client would hold after the last event.

Each fold raises ValueError where an SDK would fail, so that the case that calls it fails with the reason.
Facts: the stream helpers of the openai and anthropic Python packages (index gaps, repeated roles, event order).
"""

from __future__ import annotations

import json as _json
from collections.abc import Iterable
from typing import Any

from imp_server.conformance.boxes import MISSING, Box
from imp_server.conformance.exchange import SseEvent


def _ensure(condition: bool, complaint: str) -> None:
    if not condition:
        raise ValueError(complaint)


def payloads(frames: Iterable[SseEvent]) -> list[Any]:
    """JSON payloads of an OpenAI stream: every frame but the final [DONE], which must be there and last."""
    frames = list(frames)
    _ensure(bool(frames), "the stream has no events")
    _ensure(frames[-1].data == "[DONE]", "the last event is not [DONE]")
    found = [f.json for f in frames[:-1]]
    _ensure(all(p is not MISSING for p in found), "an event is not JSON")
    return found


def fold_chat(frames: Iterable[SseEvent]) -> Box:
    """Chat chunks -> {choices: [{content, reasoning, tool_calls, finish_reason, n_finishes}], usage, heads, ...}."""
    chunks = payloads(frames)
    choices: list[dict[str, Any]] = []
    usage = None
    for chunk in chunks:
        if chunk.usage:
            usage = chunk.usage.value
        for choice in chunk.choices:
            _ensure(choice.index <= len(choices), f"choice {choice.index} before choice {len(choices)}")
            if choice.index == len(choices):
                choices.append(_new_choice())
            _add_delta(choices[choice.index], choice)
    heads = [{k: c.value.get(k) for k in ("id", "object", "created", "model")} for c in chunks]
    return Box({"choices": choices, "usage": usage, "heads": heads, "n_chunks": len(chunks)})


def _new_choice() -> dict[str, Any]:
    return {
        "role": None, "content": "", "reasoning": "", "tool_calls": [], "finish_reason": None, "n_finishes": 0,
        "n_roles": 0, "logprobs": [], "n_after_finish": 0,
    }  # fmt: skip


def _add_delta(held: dict[str, Any], choice: Any) -> None:
    delta = choice.delta
    if held["n_finishes"]:
        held["n_after_finish"] += 1
    if delta.role:
        held["role"], held["n_roles"] = delta.role, held["n_roles"] + 1
    held["content"] += delta.content or ""
    held["reasoning"] += delta.reasoning_content or delta.reasoning or ""
    if choice.logprobs and choice.logprobs.content:
        held["logprobs"] += [e.value for e in choice.logprobs.content]
    for call in delta.tool_calls or ():
        calls = held["tool_calls"]
        _ensure(call.index <= len(calls), f"tool call {call.index} before call {len(calls)}")
        if call.index == len(calls):
            name = call.function.name or call.custom.name
            _ensure(bool(call.id) and bool(name), "the first delta of a call lacks its id or name")
            calls.append({"id": call.id, "type": call.type or None, "name": name, "arguments": "", "input": ""})
        else:
            repeated = call.id or call.function.name or call.custom.name
            _ensure(not repeated, "a call's id or name is repeated")
        calls[call.index]["arguments"] += call.function.arguments or ""
        calls[call.index]["input"] += call.custom.input or ""
    if choice.finish_reason is not MISSING and choice.finish_reason is not None:
        held["finish_reason"], held["n_finishes"] = choice.finish_reason, held["n_finishes"] + 1


def fold_completions(frames: Iterable[SseEvent]) -> Box:
    """Completions chunks -> {choices: [{text, finish_reason, n_finishes}], usage}."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in payloads(frames):
        if chunk.usage:
            usage = chunk.usage.value
        for choice in chunk.choices:
            held = choices.setdefault(choice.index, {"text": "", "finish_reason": None, "n_finishes": 0})
            held["text"] += choice.text
            if choice.finish_reason is not MISSING and choice.finish_reason is not None:
                held["finish_reason"], held["n_finishes"] = choice.finish_reason, held["n_finishes"] + 1
    _ensure(sorted(choices) == list(range(len(choices))), "choice indexes are not dense")
    return Box({"choices": [choices[i] for i in range(len(choices))], "usage": usage})


_TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def fold_responses(frames: Iterable[SseEvent]) -> Box:
    """Responses events -> {response, items, n_terminal}; raises on any break of order, index or identity."""
    events = [f for f in frames if f.data != "[DONE]"]
    _ensure(bool(events), "the stream has no events")
    _ensure(events[0].json.type == "response.created", "the first event is not response.created")
    items: list[dict[str, Any]] = []
    for number, frame in enumerate(events):
        event = frame.json
        _ensure(event is not MISSING, "an event is not JSON")
        _ensure(frame.event == event.type, f"event name {frame.event!r} differs from type {event.type!r}")
        _ensure(event.sequence_number == number, f"sequence_number {event.sequence_number} at place {number}")
        _take_item_event(items, event)
    terminal = [f.json for f in events if f.json.type in _TERMINAL]
    _ensure(len(terminal) == 1 and events[-1].json.type in _TERMINAL, "not exactly one terminal event at the end")
    final = terminal[0].response
    ids = {f.json.response.id for f in events if f.json.response is not MISSING}
    _ensure(len(ids) == 1, "response.id changes over the stream")
    for place, item in enumerate(items):
        _ensure(item["done"], f"item {place} was never done")
        _ensure(final.output[place].value == item["item"], f"item {place} differs between its done event and the end")
    _ensure(len(final.output) == len(items), "the final output holds items that were never added")
    return Box({"response": final.value, "items": [i["item"] for i in items], "deltas": [i["text"] for i in items]})


def _take_item_event(items: list[dict[str, Any]], event: Any) -> None:
    kind = event.type
    if kind == "response.output_item.added":
        _ensure(event.output_index == len(items), f"output_index {event.output_index} after {len(items)} items")
        items.append({"item": event.item.value, "id": event.item.id, "text": "", "done": False, "parts": 0})
        return
    if event.output_index is MISSING:
        return
    _ensure(event.output_index < len(items), f"{kind} for an item that was not added")
    held = items[event.output_index]
    _ensure(not held["done"], f"{kind} after the item was done")
    if event.item_id is not MISSING:
        _ensure(event.item_id == held["id"], f"{kind} changes the item's id")
    if kind.endswith(".delta"):
        held["text"] += event.delta
    if kind == "response.content_part.added":
        _ensure(event.content_index == held["parts"], f"content_index {event.content_index} at part {held['parts']}")
        held["parts"] += 1
    if kind == "response.output_item.done":
        _ensure(event.item.id == held["id"], "the item's id differs between added and done")
        held["item"], held["done"] = event.item.value, True


def fold_messages(frames: Iterable[SseEvent]) -> Box:
    """Anthropic events -> {message, blocks, stop_reason, stop_sequence, usage}; raises on any break of order."""
    events = [f for f in frames if f.json is not MISSING and f.json.type != "ping"]
    _ensure(bool(events) and events[0].json.type == "message_start", "the first event is not message_start")
    _ensure(events[-1].json.type == "message_stop", "the last event is not message_stop")
    _ensure(all(f.event == f.json.type for f in frames if f.json is not MISSING), "an event name differs from its type")
    blocks: list[dict[str, Any]] = []
    is_open = False
    delta: Any = MISSING
    for event in (f.json for f in events[1:-1]):
        _ensure(delta is MISSING, f"{event.type} after message_delta")
        if event.type == "content_block_start":
            _ensure(not is_open, "a block starts while another is open")
            _ensure(event.index == len(blocks), f"block index {event.index} at place {len(blocks)}")
            blocks.append({**event.content_block.value, "partial_json": ""})
            is_open = True
        elif event.type == "content_block_delta":
            _ensure(is_open and event.index == len(blocks) - 1, "a delta outside its block")
            _add_block_delta(blocks[-1], event.delta)
        elif event.type == "content_block_stop":
            _ensure(is_open and event.index == len(blocks) - 1, "a stop outside its block")
            is_open = False
        elif event.type == "message_delta":
            delta = event
    _ensure(not is_open, "a block is never stopped")
    _ensure(delta is not MISSING, "there is no message_delta")
    for block in blocks:
        if block.get("type") == "tool_use":
            block["input"] = _json.loads(block["partial_json"] or "{}")
        del block["partial_json"]
    return Box(
        {
            "message": events[0].json.message.value,
            "blocks": blocks,
            "stop_reason": delta.delta.value.get("stop_reason"),
            "stop_sequence": delta.delta.value.get("stop_sequence"),
            "usage": delta.usage.value,
        }
    )


def _add_block_delta(block: dict[str, Any], delta: Any) -> None:
    if delta.type == "text_delta":
        block["text"] += delta.text
    elif delta.type == "thinking_delta":
        block["thinking"] += delta.thinking
    elif delta.type == "signature_delta":
        block["signature"] = delta.signature
    elif delta.type == "input_json_delta":
        block["partial_json"] += delta.partial_json
