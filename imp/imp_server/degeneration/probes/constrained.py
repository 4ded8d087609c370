"""Category constrained: JSON that parses and fits, calls that are what was forced, whatever the decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from imp_server.degeneration.asker import ProbeAsker
from imp_server.degeneration.checks import fault_of
from imp_server.degeneration.client import Answer
from imp_server.degeneration.findings import Finding, judged, skipped

_NAME = "constrained"
_LEVELS = ("low", "middle", "high")
_TAGS = ("home", "work", "travel")
_REPORT = {
    "type": "object",
    "properties": {
        "level": {"type": "string", "enum": list(_LEVELS)},
        "amount": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string", "enum": list(_TAGS)}, "maxItems": 3},
    },
    "required": ["level", "amount", "tags"],
    "additionalProperties": False,
}
_PROMPT = "File a report about a small repair at home as JSON with level, amount and tags."
_REMINDER = {
    "type": "function",
    "function": {
        "name": "set_reminder",
        "description": "Sets a reminder",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "maxLength": 60},
                "hour": {"type": "integer", "minimum": 0, "maximum": 23},
            },
            "required": ["text", "hour"],
            "additionalProperties": False,
        },
    },
}
_LAMP = {
    "type": "function",
    "function": {
        "name": "set_lamp",
        "strict": True,
        "description": "Switches a lamp",
        "parameters": {
            "type": "object",
            "properties": {"state": {"type": "string", "enum": ["on", "off"]}},
            "required": ["state"],
            "additionalProperties": False,
        },
    },
}
_DECODING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "hot": {"temperature": 1.3},
    "min-p": {"temperature": 1.0, "min_p": 0.05},
    "mirostat": {"temperature": 1.0, "mirostat": 2},
}
"""How the schema's answers are decoded; mirostat is a sampler that fast paths of a step lack."""


def constrained(ask: ProbeAsker) -> Iterator[Finding]:
    free = ask.chat("Reply with a JSON object that has a key city.", 200, response_format={"type": "json_object"})
    yield _json(free, "json-object", fault_of("json_parse", free, True))
    schema = {"type": "json_schema", "json_schema": {"name": "report", "strict": True, "schema": _REPORT}}
    for name, decoding in _DECODING.items():
        answer = ask.chat(_PROMPT, 200, response_format=schema, **decoding)
        if name == "mirostat" and answer.status in (400, 422):
            yield skipped(_NAME, "schema-mirostat", f"the server has no mirostat (HTTP {answer.status})")
            continue
        yield _json(answer, f"schema-{name}", unfit(answer))
    yield from _calls(ask)


def unfit(answer: Answer) -> str | None:
    """How an answer breaks the report's schema; written out, so that no validator is needed."""
    if (fault := fault_of("json_parse", answer, True)) is not None:
        return fault
    value = json.loads(answer.content)
    if not isinstance(value, dict) or set(value) != {"level", "amount", "tags"}:
        return f"keys are wrong: {answer.content[:100]!r}"
    if (
        value["level"] not in _LEVELS
        or isinstance(value["amount"], bool)
        or not isinstance(value["amount"], int | float)
    ):
        return f"level or amount is wrong: {answer.content[:100]!r}"
    tags = value["tags"]
    if not isinstance(tags, list) or len(tags) > 3 or any(tag not in _TAGS for tag in tags):
        return f"tags are wrong: {answer.content[:100]!r}"
    return None


def _json(answer: Answer, probe: str, fault: str | None) -> Finding:
    """What the limit cut off may be no JSON."""
    if fault is not None and answer.ok and answer.finish == "length":
        return skipped(_NAME, probe, f"cut by its limit: {fault}")
    return judged(_NAME, probe, "fits", fault)


def _calls(ask: ProbeAsker) -> Iterator[Finding]:
    forced = {"type": "function", "function": {"name": "set_reminder"}}
    answer = ask.chat(
        "Remind me at seven in the evening to water the plants.", 200, tools=[_REMINDER], tool_choice=forced
    )
    if 400 <= answer.status < 500:
        yield skipped(_NAME, "forced-call", f"HTTP {answer.status}: {answer.error}")
        return
    yield judged(_NAME, "forced-call", "called", _not_called(answer))
    yield judged(_NAME, "forced-call", "arguments", _bad_arguments(answer))
    optional = ask.chat("Please switch the lamp on.", 120, tools=[_LAMP])
    yield judged(_NAME, "optional-call", "enum", _not_a_state(optional))


def _not_called(answer: Answer) -> str | None:
    names = [call["function"]["name"] for call in answer.tool_calls]
    return None if names and set(names) == {"set_reminder"} else f"calls {names}, text {answer.content[:60]!r}"


def _arguments(call: dict[str, Any]) -> Any:
    """None where they are no JSON."""
    try:
        return json.loads(call["function"]["arguments"])
    except (ValueError, TypeError):
        return None


def _bad_arguments(answer: Answer) -> str | None:
    if not answer.tool_calls:
        return "no call"
    value = _arguments(answer.tool_calls[0])
    if not isinstance(value, dict) or set(value) != {"text", "hour"}:
        return f"arguments {answer.tool_calls[0]['function']['arguments'][:100]!r}"
    right = isinstance(value["text"], str) and isinstance(value["hour"], int) and 0 <= value["hour"] <= 23
    return None if right else f"arguments {value}"


def _not_a_state(answer: Answer) -> str | None:
    """No call at all is the model's choice."""
    for call in answer.tool_calls:
        value = _arguments(call)
        if not isinstance(value, dict) or value.get("state") not in ("on", "off"):
            return f"arguments {call['function']['arguments'][:100]!r}"
    return None
