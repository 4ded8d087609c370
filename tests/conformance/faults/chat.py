"""What a server may do wrong in Chat Completions."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.bending import (
    Event,
    Events,
    choices,
    drop_last_text,
    each,
    in_events,
    in_json,
    in_reply,
    set_choices,
)
from tests.conformance.tape import Exchange, replace

CHAT = "/v1/chat/completions"


def _empty_reasons(events: Events) -> None:
    for choice in choices(events):
        choice["finish_reason"] = choice["finish_reason"] or ""


def _token_index(events: Events) -> None:
    for number, choice in enumerate(choices(events)):
        choice["index"] = number


def _role_everywhere(events: Events) -> None:
    for choice in choices(events):
        choice["delta"]["role"] = "assistant"


def _no_role(events: Events) -> None:
    for choice in choices(events):
        choice["delta"].pop("role", None)


def _from_one(events: Events) -> None:
    for choice in choices(events):
        choice["index"] += 1


def _two_reasons(events: Events) -> Events:
    at = max(i for i, e in enumerate(events) if isinstance(e.data, dict) and e.data["choices"])
    return [*events[: at + 1], events[at], *events[at + 1 :]]


def _no_reason(events: Events) -> None:
    for choice in choices(events):
        choice["finish_reason"] = None


def _usage_everywhere(events: Events) -> None:
    usage = next(e.data["usage"] for e in events if isinstance(e.data, dict) and e.data.get("usage"))
    each(events, lambda data: data.update(usage=usage))


def _usage_without_choices(events: Events) -> None:
    each(events, lambda data: data.pop("choices") if data.get("usage") else None)


def _calls(events: Events) -> list[Any]:
    return [call for choice in choices(events) for call in choice["delta"].get("tool_calls", ())]


def _name_in_every_call(events: Events) -> None:
    name = _calls(events)[0]["function"]["name"]
    for call in _calls(events):
        call["function"]["name"] = name


def _no_call_ids(events: Events) -> None:
    for call in _calls(events):
        call.pop("id", None)


def _calls_from_one(events: Events) -> None:
    for call in _calls(events):
        call["index"] += 1


def _arguments_twice(events: Events) -> None:
    call = _calls(events)[-1]
    call["function"]["arguments"] *= 2


def _arguments_object(reply: Any) -> None:
    for call in reply["choices"][0]["message"]["tool_calls"]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])


def _arguments_null(reply: Any) -> None:
    for call in reply["choices"][0]["message"]["tool_calls"]:
        call["function"]["arguments"] = None


def _calls_finish_stop(reply: Any) -> None:
    for choice in reply["choices"]:
        if choice["finish_reason"] == "tool_calls":
            choice["finish_reason"] = "stop"


def _raw_tokens(reply: Any) -> None:
    for entry in reply["choices"][0]["logprobs"]["content"]:
        entry["token"] = entry["token"].replace(" ", "\u0120") + "\u0120"


def _null_top(reply: Any) -> None:
    for entry in reply["choices"][0]["logprobs"]["content"]:
        entry["top_logprobs"] = entry["top_logprobs"] or None


def _no_bytes(reply: Any) -> None:
    for entry in reply["choices"][0]["logprobs"]["content"]:
        entry["bytes"] = None


def _leak_stop(exchange: Exchange) -> Exchange | None:
    stop = exchange.asked("stop")
    if not stop or exchange.is_stream or exchange.status != 200:
        return None
    reply = json.loads(exchange.content)
    reply["choices"][0]["message"]["content"] += stop if isinstance(stop, str) else stop[0]
    return replace(exchange, content=json.dumps(reply).encode())


def _leak_stop_prefix(exchange: Exchange) -> Exchange | None:
    stop = exchange.asked("stop")
    if not isinstance(stop, list) or not stop or not exchange.is_stream:
        return None
    sent = exchange.content.decode()
    delta = '"delta":{"content":"'
    at = sent.rfind(delta)
    return replace(exchange, content=(sent[: at + len(delta)] + stop[0][0] + sent[at + len(delta) :]).encode())


def _replacement_at_cut(reply: Any) -> None:
    reply["choices"][0]["message"]["content"] += "\ufffd"


def _length_as_stop(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["finish_reason"] = choice["finish_reason"].replace("length", "stop")


CHAT_FAULTS = [
    in_events("chat: finish_reason is '' until the end", CHAT, _empty_reasons),
    in_events("chat: index counts tokens", CHAT, _token_index),
    in_events("chat: indexes start at one", CHAT, _from_one),
    in_events("chat: the role in every chunk", CHAT, _role_everywhere),
    in_events("chat: no role at all", CHAT, _no_role),
    in_events("chat: two chunks with a finish_reason", CHAT, _two_reasons),
    in_events("chat: never a finish_reason", CHAT, _no_reason),
    in_events("chat: no [DONE]", CHAT, lambda events: events[:-1]),
    in_events("chat: usage in every chunk", CHAT, _usage_everywhere),
    in_events("chat: the usage chunk lacks choices", CHAT, _usage_without_choices),
    in_events(
        "chat: no usage chunk", CHAT, lambda events: [e for e in events if e.data == "[DONE]" or e.data["choices"]]
    ),
    in_events("chat: the last text is lost", CHAT, drop_last_text),
    in_events("chat: events have names", CHAT, lambda events: [Event("message", e.data) for e in events]),
    in_events(
        "chat: object is that of whole replies", CHAT, lambda e: each(e, lambda d: d.update(object="chat.completion"))
    ),
    in_events("chat: a new id in every chunk", CHAT, lambda e: each(e, lambda d: d.update(id=f"chatcmpl-{id(d)}"))),
    in_events("chat: a call's name in every delta", CHAT, _name_in_every_call),
    in_events("chat: calls without id", CHAT, _no_call_ids),
    in_events("chat: call indexes start at one", CHAT, _calls_from_one),
    in_events("chat: the last arguments are sent twice", CHAT, _arguments_twice),
    in_json("chat: arguments are an object", CHAT, _arguments_object),
    in_json("chat: arguments are null", CHAT, _arguments_null),
    in_json("chat: calls finish with stop", CHAT, _calls_finish_stop),
    in_json("chat: length is reported as stop", CHAT, _length_as_stop),
    in_json("chat: the key logprobs is missing", CHAT, lambda r: [c.pop("logprobs") for c in r["choices"]] and None),
    in_json(
        "chat: the key refusal is missing", CHAT, lambda r: [c["message"].pop("refusal") for c in r["choices"]] and None
    ),
    in_json("chat: every choice has index 0", CHAT, set_choices(index=0)),
    in_json("chat: created is a string", CHAT, lambda r: r.update(created=str(r["created"]))),
    in_json("chat: another model's name", CHAT, lambda r: r.update(model="gpt-4")),
    in_json("chat: no usage", CHAT, lambda r: r.pop("usage") and None),
    in_json("chat: total_tokens is wrong", CHAT, lambda r: r["usage"].update(total_tokens=r["usage"]["prompt_tokens"])),
    in_json("chat: no usage details", CHAT, lambda r: r["usage"].pop("prompt_tokens_details") and None),
    in_json("chat: logprob tokens are raw vocabulary", CHAT, _raw_tokens),
    in_json("chat: top_logprobs is null", CHAT, _null_top),
    in_json("chat: logprob bytes are null", CHAT, _no_bytes),
    in_json("chat: half a character at a cut", CHAT, _replacement_at_cut),
    in_reply("chat: the stop string stays in the text", CHAT, _leak_stop),
    in_reply("chat: a part of the stop string is streamed", CHAT, _leak_stop_prefix),
]
