"""What is asked: prompts of the shapes that people send, made anew from a seed so that nothing is cached by chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from imp_server.degeneration.corpus import prose

CHAT = "/v1/chat/completions"
_TASKS = (
    "Explain how a tide works.", "Write a short letter to a landlord about a broken window.", "How is leek soup made?",
    "Summarise the plot of a story about two sisters and a boat.", "How do I learn to juggle?",
    "Compare a bicycle with a bus for short ways.", "Write a function that counts words.", "Plan a day in a town.",
)  # fmt: skip
_TOOL_WORDS = ("file", "folder", "branch", "ticket", "page", "table", "user", "event", "image", "note")
_TOOL_VERBS = ("read", "write")
_RECIPE = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 60},
        "minutes": {"type": "integer", "minimum": 1, "maximum": 240},
        "steps": {"type": "array", "items": {"type": "string", "maxLength": 80}, "maxItems": 4},
    },
    "required": ["title", "minutes", "steps"],
    "additionalProperties": False,
}


class Asked(NamedTuple):
    path: str
    body: dict[str, Any]


def _chat(messages: list[dict[str, Any]], max_tokens: int, **fields: Any) -> Asked:
    body = {"messages": messages, "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    return Asked(CHAT, {**body, **fields})


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat(draw: random.Random, max_tokens: int) -> Asked:
    """A question of a line or two."""
    return _chat([_user(f"{draw.choice(_TASKS)} (No. {draw.randrange(10**6)})")], max_tokens)


def document(draw: random.Random, max_tokens: int) -> Asked:
    """A page or three of prose, and a question about it."""
    text = prose(draw.randrange(40, 120), "", str(draw.random()))
    return _chat([_user(f"{text}\n\nWhat is this about? Answer in two sentences.")], max_tokens)


def agent(draw: random.Random, max_tokens: int) -> Asked:
    """A turn of an agent: the same twenty tools and instructions each time, and a history that grows."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": prose(25, "", "instructions")}]
    for i in range(draw.randrange(1, 4)):
        messages += [_user(f"Step {i}: look at {draw.choice(_TOOL_WORDS)} {draw.randrange(50)}.")]
        messages += [{"role": "assistant", "content": prose(2, "", f"turn {i}")}]
    messages.append(_user(f"Go on with {draw.choice(_TOOL_WORDS)} {draw.randrange(10**6)}."))
    return _chat(messages, max_tokens, tools=_TOOLS)


def _tool(verb: str, word: str) -> dict[str, Any]:
    properties = {
        "name": {"type": "string", "description": f"The {word}'s name"},
        "limit": {"type": "integer", "minimum": 0, "maximum": 100},
        "recursive": {"type": "boolean"},
    }
    parameters = {"type": "object", "properties": properties, "required": ["name"]}
    function = {"name": f"{verb}_{word}", "description": f"To {verb} a {word}", "parameters": parameters}
    return {"type": "function", "function": function}


_TOOLS = [_tool(verb, word) for verb in _TOOL_VERBS for word in _TOOL_WORDS]


def json_answer(draw: random.Random, max_tokens: int) -> Asked:
    """An answer bound by a JSON schema."""
    bound = {"type": "json_schema", "json_schema": {"name": "recipe", "strict": True, "schema": _RECIPE}}
    return _chat([_user(f"A recipe with {draw.randrange(2, 9)} carrots, as JSON.")], max_tokens, response_format=bound)


def embeddings(draw: random.Random, _max_tokens: int) -> Asked:
    """Four short texts."""
    return Asked("/v1/embeddings", {"input": [prose(2, "", str(draw.random())) for _ in range(4)]})


SHAPES: Mapping[str, Callable[[random.Random, int], Asked]] = {
    "chat": chat,
    "document": document,
    "agent": agent,
    "json": json_answer,
    "embeddings": embeddings,
}
