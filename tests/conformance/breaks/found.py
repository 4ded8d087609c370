"""Faults that were found in use, put back."""

from __future__ import annotations

from typing import Any

from imp_server.api import app, endpoint
from imp_server.api.validation import Validators
from imp_server.dialects import response_formats
from imp_server.dialects.anthropic import events as anthropic_messages_events
from imp_server.dialects.anthropic import messages as anthropic_messages
from imp_server.dialects.anthropic.events import MessageEvents
from imp_server.dialects.llamacpp import handlers as llamacpp
from imp_server.dialects.openai_chat import reply as openai_chat_reply
from imp_server.dialects.openai_responses import events as openai_responses_events
from imp_server.dialects.openai_responses.events import ResponseEvents
from imp_server.dialects.tgi import reply as tgi_reply

from tests.conformance.breaking import Json, after, instead


def _completed(call: Json) -> None:
    call["function"]["arguments"] = '{"text": ""}'


def _with_a_call(message: Json) -> None:
    message["content"].append({"type": "tool_use", "id": "toolu_1", "name": "note", "input": {"text": ""}})


def _all_completed(response: Json) -> None:
    for item in response["output"]:
        item["status"] = "completed"


def _five_minutes(usage: dict[str, Any]) -> dict[str, Any]:
    return {"ephemeral_5m_input_tokens": usage["cache_creation_input_tokens"], "ephemeral_1h_input_tokens": 0}


def _as_bytes(text: str) -> str:
    return text + "\\x9f"


def _no_fields(*_: Any) -> list[str]:
    return []


FOUND_BREAKS = [
    after("found: a cut call is completed", "openai-chat/tools/11", openai_chat_reply._ChatCall, "body", _completed),
    after("found: a cut call is in the message", "anthropic-messages/tools/7", MessageEvents, "message", _with_a_call),
    after("found: a cut item is completed", "openai-responses/tools/14", ResponseEvents, "response", _all_completed),
    instead("found: the schema of json_object is forgotten", "openai-chat/structured/7", response_formats,
            "_OBJECT_SCHEMAS", ("schema",)),
    instead("found: neighbours of one role stay apart", "anthropic-messages/input/13", anthropic_messages, "in_turns",
            list),
    instead("found: 1h is written as 5m", "anthropic-messages/cache/3", anthropic_messages_events, "_written",
            lambda usage, hour_until: _five_minutes(usage)),
    instead("found: unknown paths speak one shape", "anthropic-messages/errors/10", app, "_shape",
            lambda services, path, headers: "openai"),
    instead("found: the template is shown without tools", "llamacpp/template/1", llamacpp, "_TEMPLATE_FIELDS",
            ("messages",)),
    after("found: tokens of bytes", "tgi/generate/1", tgi_reply.TokenTexts, "of", _as_bytes),
    after("found: the prompt's tokens are missing", "tgi/generate/3", tgi_reply._Generation, "prefill",
          lambda tokens: tokens.clear()),
    instead("found: ignored fields aren't told", "imp/ignored-fields", Validators, "ignored_fields", _no_fields),
    after("found: the sampling in force is null", "openai-responses/reply/8", openai_responses_events, "resource",
          lambda response: response.update(temperature=None, top_p=None)),
    instead("found: the coding of a body is overlooked", "http/http/15", endpoint, "codings_of", lambda value: ()),
]  # fmt: skip
