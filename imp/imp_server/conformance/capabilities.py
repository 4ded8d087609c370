"""What a target claims to offer, found by asking it. A case that needs more is "not claimed", never failed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from imp_server.conformance.boxes import MISSING
from imp_server.conformance.exchange import Reply, Target
from imp_server.core import ConfigError

_HELLO = [{"role": "user", "content": "Say hello."}]
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
_CUSTOM = {"tools": [{"type": "custom", "name": "say"}], "tool_choice": {"type": "custom", "name": "say"}}
_CHAT_CUSTOM = {
    "tools": [{"type": "custom", "custom": {"name": "say"}}],
    "tool_choice": {"type": "custom", "custom": {"name": "say"}},
}
_TOOL = {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}


@dataclass(slots=True)
class Capabilities:
    """Names used in `needs`, and the facts found on the way."""

    model: str
    claimed: set[str] = field(default_factory=set)
    context_length: int = 0


def probe(target: Target, model: str | None = None) -> Capabilities:
    """Ask the target what it offers. Raises ConfigError if it lists no model and none was given."""
    found = Capabilities(model or _first_model(target))
    for name, method, path, body in questions(found.model):
        headers = {"content-type": "application/json"} if body is not None else {}
        if path.startswith("/v1/messages"):
            headers["anthropic-version"] = "2023-06-01"
        data = json.dumps(body).encode() if body is not None else None
        reply = target.send(method, path, body=data, headers=headers)
        if _claims(name, reply):
            found.claimed.add(name)
            _note(found, name, reply)
    if target.send("GET", "/v1/models", body=None, headers={}, auth=False).status in (401, 403):
        found.claimed.add("auth")
    return found


def _first_model(target: Target) -> str:
    reply = target.send("GET", "/v1/models", body=None, headers={})
    if reply.broken:
        raise ConfigError(f"{target.url} can't be reached: {reply.broken}; check --url, without /v1")
    data = reply.json.data if reply.json is not MISSING else MISSING
    if not data:
        raise ConfigError(f"{target.url} lists no model at /v1/models; name one with --model")
    return str(data[0].id)


def questions(model: str) -> list[tuple[str, str, str, Any]]:
    """(capability, method, path, body) of each request that finds one out."""
    chat: dict[str, Any] = {"model": model, "messages": _HELLO, "max_tokens": 8}
    responses: dict[str, Any] = {"model": model, "input": "Say hello.", "max_output_tokens": 16}
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": _SCHEMA, "strict": True}}
    post, get = "POST", "GET"
    return [
        ("chat", post, "/v1/chat/completions", chat),
        ("chat-n", post, "/v1/chat/completions", chat | {"n": 2}),
        ("chat-logprobs", post, "/v1/chat/completions", chat | {"logprobs": True, "top_logprobs": 2}),
        ("structured", post, "/v1/chat/completions", chat | {"max_tokens": 48, "response_format": schema}),
        ("tools", post, "/v1/chat/completions", chat | {"tools": [_TOOL], "tool_choice": "required", "max_tokens": 64}),
        ("reasoning", post, "/v1/chat/completions", _thinking(model)),
        ("completions", post, "/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 4}),
        ("completions-echo", post, "/v1/completions", _echo(model)),
        ("responses", post, "/v1/responses", responses | {"store": False}),
        ("responses-store", post, "/v1/responses", responses | {"store": True}),
        ("responses-background", post, "/v1/responses", responses | {"background": True}),
        ("conversations", post, "/v1/conversations", {}),
        ("custom-tools", post, "/v1/responses", responses | {"store": False, "max_output_tokens": 64, **_CUSTOM}),
        ("chat-custom-tools", post, "/v1/chat/completions", chat | {"max_tokens": 64, **_CHAT_CUSTOM}),
        ("responses-compact", post, "/v1/responses/compact", {"model": model, "input": "Say hello."}),
        ("messages", post, "/v1/messages", chat),
        ("count-tokens", post, "/v1/messages/count_tokens", {"model": model, "messages": _HELLO}),
        ("embeddings", post, "/v1/embeddings", {"model": model, "input": "Hello"}),
        ("models", get, "/v1/models", None),
        ("tokenize", post, "/tokenize", {"content": "Hello"}),
        ("props", get, "/props", None),
        ("slots", get, "/slots", None),
        ("native-completion", post, "/completion", {"prompt": "Hello", "n_predict": 4}),
        ("native-embedding", post, "/embedding", {"content": "Hello", "embd_normalize": -1}),
        ("apply-template", post, "/apply-template", {"messages": _HELLO}),
        ("tgi-info", get, "/info", None),
        ("tgi-generate", post, "/generate", {"inputs": "Hello", "parameters": {"max_new_tokens": 2}}),
        ("health", get, "/health", None),
        ("metrics", get, "/metrics", None),
        ("openapi", get, "/openapi.json", None),
        ("resumable-streams", post, "/v1/streams/lookup", {"conversation_ids": ["kit-probe"]}),
        ("sessions", post, "/v1/sessions/kit-probe/close", {}),
    ]


def _echo(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": "Hello", "max_tokens": 1, "echo": True, "logprobs": 1}


def _thinking(model: str) -> dict[str, Any]:
    """A model that thinks does so over a sum, unasked."""
    return {"model": model, "messages": [{"role": "user", "content": "What is 17 plus 3?"}], "max_tokens": 256}


def _claims(name: str, reply: Reply) -> bool:
    if reply.status != 200:
        return False
    json_reply = reply.json
    if name == "chat-n":
        return len(json_reply.choices or ()) == 2
    if name == "chat-logprobs":
        return bool(json_reply.choices and json_reply.choices[0].logprobs)
    if name == "tools":
        return bool(json_reply.choices and json_reply.choices[0].message.tool_calls)
    if name == "structured":
        return _is_structured(json_reply)
    if name == "reasoning":
        message = json_reply.choices[0].message if json_reply.choices else json_reply
        return bool(message.reasoning_content or message.reasoning)
    if name == "custom-tools":
        return any(item.type == "custom_tool_call" for item in json_reply.output or ())
    if name == "chat-custom-tools":
        calls = json_reply.choices[0].message.tool_calls if json_reply.choices else ()
        return any(call.type == "custom" for call in calls or ())
    if name == "responses-background":
        return json_reply.status in ("queued", "in_progress")
    if name == "responses-store":
        return bool(json_reply.store) and bool(json_reply.id)
    return True


def _is_structured(reply: Any) -> bool:
    try:
        return json.loads(reply.choices[0].message.content) in ({"a": "x"}, {"a": "y"})
    except (TypeError, ValueError, IndexError, AttributeError):
        return False


def _note(found: Capabilities, name: str, reply: Reply) -> None:
    if name == "models" and reply.json.data:
        first = next((m for m in reply.json.data if m.id == found.model), reply.json.data[0])
        found.context_length = int(first.max_model_len or (first.meta or MISSING).n_ctx_train or found.context_length)
    if name == "health" and reply.json.suspended is not MISSING:
        found.claimed.add("suspend")
    if name == "props":
        found.context_length = int(reply.json.default_generation_settings.n_ctx or found.context_length)
