"""The faults: each a single thing that a server may do wrong, most of them seen in the wild."""

from __future__ import annotations

import base64
import itertools
import json
import struct
from typing import Any

from tests.conformance.bending import (
    Event,
    Events,
    Fault,
    choices,
    each,
    first,
    in_events,
    in_json,
    in_reply,
    renumber,
    swap,
    without,
)
from tests.conformance.tape import Exchange, replace

CHAT, TEXT, EMBED, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"

# --- Chat Completions -------------------------------------------------------------------------------


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


def _drop_last_text(events: Events) -> Events:
    at = max(i for i, e in enumerate(events) if isinstance(e.data, dict) and any(_said(c) for c in e.data["choices"]))
    return events[:at] + events[at + 1 :]


def _said(choice: Any) -> bool:
    return bool(choice.get("text") or choice.get("delta", {}).get("content"))


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


def _set_choices(**values: Any) -> Any:
    def change(reply: Any) -> None:
        for choice in reply["choices"]:
            choice.update(values)

    return change


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
    in_events("chat: the last text is lost", CHAT, _drop_last_text),
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
    in_json("chat: every choice has index 0", CHAT, _set_choices(index=0)),
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

# --- Completions and embeddings ---------------------------------------------------------------------


def _offsets_fall(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["logprobs"]["text_offset"].reverse()


def _short_tokens(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["logprobs"]["tokens"] = [token.strip() for token in choice["logprobs"]["tokens"]]


def _first_logprob(reply: Any) -> None:
    reply["choices"][0]["logprobs"]["token_logprobs"][0] = -0.5


def _floats_for_base64(exchange: Exchange) -> Exchange | None:
    if exchange.asked("encoding_format") != "base64":
        return None
    reply = json.loads(exchange.content)
    for item in reply["data"]:
        data = base64.b64decode(item["embedding"])
        item["embedding"] = list(struct.unpack(f"<{len(data) // 4}f", data))
    return replace(exchange, content=json.dumps(reply).encode())


def _long_vectors(reply: Any) -> None:
    for item in reply["data"]:
        item["embedding"] = [2 * x for x in item["embedding"]]


def _swapped_vectors(reply: Any) -> None:
    one, two = reply["data"]
    one["embedding"], two["embedding"] = two["embedding"], one["embedding"]


_CLOCK = itertools.count(1)


def _created_now(reply: Any) -> None:
    for model in reply["data"]:
        model["created"] += next(_CLOCK)


OTHER_OPENAI_FAULTS = [
    in_json("completions: offsets fall", TEXT, _offsets_fall),
    in_json("completions: tokens lose their blanks", TEXT, _short_tokens),
    in_json("completions: the prompt's first token has a logprob", TEXT, _first_logprob),
    in_json("completions: logprobs are null", TEXT, _set_choices(logprobs=None)),
    in_json("completions: prompts answered in reverse", TEXT, lambda r: r["choices"].reverse()),
    in_events("completions: no [DONE]", TEXT, lambda events: events[:-1]),
    in_events("completions: the last text is lost", TEXT, _drop_last_text),
    in_events(
        "completions: choices all have index 0", TEXT, lambda e: [c.update(index=0) for c in choices(e)] and None
    ),
    in_reply("embeddings: floats for base64", EMBED, _floats_for_base64),
    in_json("embeddings: vectors of length two", EMBED, _long_vectors),
    in_json("embeddings: two texts swapped", EMBED, _swapped_vectors),
    in_json("embeddings: all with index 0", EMBED, lambda r: [d.update(index=0) for d in r["data"]] and None),
    in_json("models: created is now", MODELS, _created_now),
    in_json("models: no owned_by", MODELS, lambda r: [m.pop("owned_by") for m in r["data"]] and None),
]

# --- Responses --------------------------------------------------------------------------------------


def _numbers_from_two(events: Events) -> None:
    for event in events[2:]:
        event.data["sequence_number"] += 1


def _outputs_from_one(events: Events) -> None:
    each(events, lambda d: d.update(output_index=d["output_index"] + 1) if "output_index" in d else None)


def _item_renamed(events: Events) -> None:
    events[first(events, "response.output_item.done")].data["item"]["id"] = "msg_other"


def _two_ends(events: Events) -> Events:
    twice = [*events, Event(events[-1].name, dict(events[-1].data))]
    renumber(twice)
    return twice


def _swap_opening(events: Events) -> None:
    swap(events, 0, 1)
    renumber(events)


def _swap_part_and_item(events: Events) -> None:
    at = first(events, "response.output_item.added")
    swap(events, at, at + 1)
    renumber(events)


def _end_event(kind: str) -> Any:
    def change(events: Events) -> None:
        events[-1].name = events[-1].data["type"] = kind

    return change


def _lost_delta(events: Events) -> Events:
    at = first(events, "response.output_text.delta")
    left = events[:at] + events[at + 1 :]
    renumber(left)
    return left


def _in_responses(name: str, change: Any) -> Fault:
    """On the events before a possible [DONE]."""

    def on_real(events: Events) -> Events:
        real = [e for e in events if e.data != "[DONE]"]
        return (change(real) or real) + events[len(real) :]

    return in_events(name, RESPONSES, on_real)


RESPONSES_FAULTS = [
    _in_responses("responses: a gap in sequence_number", _numbers_from_two),
    _in_responses("responses: output_index counts from one", _outputs_from_one),
    _in_responses("responses: the item's id changes when done", _item_renamed),
    _in_responses("responses: two terminal events", _two_ends),
    _in_responses("responses: no terminal event", lambda events: events[:-1]),
    _in_responses("responses: in_progress before created", _swap_opening),
    _in_responses("responses: the part before its item", _swap_part_and_item),
    _in_responses("responses: a cut stream says completed", _end_event("response.completed")),
    _in_responses("responses: events without names", lambda events: [Event(None, e.data) for e in events]),
    _in_responses("responses: no content_part.added", lambda e: without(e, "response.content_part.added")),
    _in_responses("responses: no output_item.done", lambda e: without(e, "response.output_item.done")),
    _in_responses("responses: a delta is lost", _lost_delta),
    _in_responses("responses: deltas without logprobs", lambda e: each(e, lambda d: d.pop("logprobs", None))),
    _in_responses("responses: the end is not nested", lambda e: e[-1].data.update(e[-1].data.pop("response"))),
    in_json(
        "responses: annotations are missing",
        RESPONSES,
        lambda r: [p.pop("annotations") for i in r["output"] for p in i["content"]] and None,
    ),
    in_json("responses: incomplete without a reason", RESPONSES, lambda r: r.update(incomplete_details=None)),
    in_json("responses: no token details", RESPONSES, lambda r: r["usage"].pop("input_tokens_details") and None),
    in_json("responses: retrieved under another id", RESPONSES + "/resp_*", lambda r: r.update(id="resp_other")),
]

# --- Messages ---------------------------------------------------------------------------------------


def _start_lacks(*keys: str) -> Any:
    def change(events: Events) -> None:
        for key in keys:
            del events[0].data["message"][key]

    return change


def _blocks_by_two(events: Events) -> None:
    each(events, lambda data: data.update(index=2 * data["index"] + 1) if "index" in data else None)


def _never_closed(events: Events) -> Events:
    return without(events, "content_block_stop")


def _stop_sequence_null(reply: Any) -> None:
    reply["stop_sequence"] = None


def _end_turn_always(reply: Any) -> None:
    reply["stop_reason"] = "end_turn"


def _cached_counted(reply: Any) -> None:
    reply["usage"]["input_tokens"] += reply["usage"]["cache_read_input_tokens"]


def _broken_partial_json(events: Events) -> None:
    for event in events:
        if event.data.get("type") == "content_block_delta" and "partial_json" in event.data["delta"]:
            event.data["delta"]["partial_json"] += "{"


def _delta_first(events: Events) -> None:
    at = first(events, "content_block_start")
    swap(events, at, at + 1)


def _leading_empty_block(reply: Any) -> None:
    reply["content"].insert(0, {"type": "text", "text": ""})


def _null_final_usage(events: Events) -> None:
    events[first(events, "message_delta")].data["usage"] = None


MESSAGES_FAULTS = [
    in_events("messages: message_start lacks type and role", MESSAGES, _start_lacks("type", "role")),
    in_events("messages: message_start lacks stop_reason", MESSAGES, _start_lacks("stop_reason")),
    in_events("messages: gaps in the block indexes", MESSAGES, _blocks_by_two),
    in_events("messages: a block is never stopped", MESSAGES, _never_closed),
    in_events("messages: a delta before its block", MESSAGES, _delta_first),
    in_events("messages: events without names", MESSAGES, lambda events: [Event(None, e.data) for e in events]),
    in_events("messages: no message_stop", MESSAGES, lambda e: without(e, "message_stop")),
    in_events("messages: no message_delta", MESSAGES, lambda e: without(e, "message_delta")),
    in_events("messages: the final usage is null", MESSAGES, _null_final_usage),
    in_events("messages: [DONE] at the end", MESSAGES, lambda events: [*events, Event(None, "[DONE]")]),
    in_events("messages: partial_json doesn't parse", MESSAGES, _broken_partial_json),
    in_json("messages: stop_sequence is always null", MESSAGES, _stop_sequence_null),
    in_json("messages: stop_reason is always end_turn", MESSAGES, _end_turn_always),
    in_json("messages: input_tokens counts cached tokens", MESSAGES, _cached_counted),
    in_json("messages: no cache counters", MESSAGES, lambda r: r["usage"].pop("cache_read_input_tokens") and None),
    in_json("messages: an empty block leads", MESSAGES, _leading_empty_block),
    in_json("messages: ids of another dialect", MESSAGES, lambda r: r.update(id="chatcmpl-1")),
    in_json("messages: count_tokens counts nothing", COUNT, lambda r: r.update(input_tokens=1)),
]

# --- prefix cache and sessions ----------------------------------------------------------------------

NATIVE, SESSIONS = "/completion", "/v1/sessions/*"


def _whole_prompt_counted(reply: Any) -> None:
    reply["timings"]["prompt_n"] = reply["tokens_evaluated"]


def _nothing_cached(reply: Any) -> None:
    usage = reply["usage"]
    usage["input_tokens"] += usage["cache_read_input_tokens"]
    usage["cache_read_input_tokens"] = 0


CACHE_FAULTS = [
    in_json("completion: prompt_n counts cached tokens", NATIVE, _whole_prompt_counted),
    in_json("messages: nothing is ever cached", MESSAGES, _nothing_cached),
    in_json("sessions: closed again and again", SESSIONS, lambda r: r.update(released_blocks=3)),
    in_json("sessions: closing releases nothing", SESSIONS, lambda r: r.update(released_blocks=0)),
]

# --- errors and transport ---------------------------------------------------------------------------


def _ok_for_unknown(exchange: Exchange) -> Exchange | None:
    return replace(exchange, status=200) if exchange.status == 404 else None


def _as_server_error(exchange: Exchange) -> Exchange | None:
    return replace(exchange, status=500) if exchange.status == 400 else None


def _as_fastapi(exchange: Exchange) -> Exchange | None:
    return replace(exchange, status=422) if exchange.status == 400 else None


def _text_error(exchange: Exchange) -> Exchange | None:
    if exchange.status < 400:
        return None
    headers = exchange.headers | {"content-type": "text/plain"}
    return replace(exchange, headers=headers, content=b"Bad Request")


def _lacks_header(name: str) -> Any:
    def change(exchange: Exchange) -> Exchange:
        return replace(exchange, headers={k: v for k, v in exchange.headers.items() if k != name})

    return change


def _echo_origin(exchange: Exchange) -> Exchange:
    return replace(exchange, headers=exchange.headers | {"access-control-allow-origin": "http://evil.example"})


def _cut_body(exchange: Exchange) -> Exchange | None:
    return replace(exchange, content=exchange.content[:-2]) if exchange.status == 200 and exchange.content else None


def _open_to_all(exchange: Exchange) -> Exchange | None:
    return replace(exchange, status=200) if exchange.status == 401 else None


TRANSPORT_FAULTS = [
    in_json("errors: flat", CHAT, lambda r: {"object": "error", **r["error"]}, status=404),
    in_json("errors: no code", CHAT, lambda r: r["error"].pop("code") and None, status=404),
    in_json("errors: the OpenAI shape on Messages", MESSAGES, lambda r: {"error": r["error"]}, status=404),
    in_reply("errors: 200 for an unknown model", CHAT, _ok_for_unknown),
    in_reply("errors: 500 for bad requests", CHAT, _as_server_error),
    in_reply("errors: 422 for bad requests", RESPONSES, _as_fastapi),
    in_reply("errors: plain text", CHAT, _text_error),
    in_reply("http: 405 without Allow", CHAT, _lacks_header("allow")),
    in_reply("http: no x-request-id", CHAT, _lacks_header("x-request-id")),
    in_reply("http: no request-id on Messages", MESSAGES, _lacks_header("request-id")),
    in_reply("http: streams may be cached", CHAT, _lacks_header("cache-control")),
    in_reply("http: every origin is allowed", CHAT, _echo_origin),
    in_reply("http: bodies are cut off", CHAT, _cut_body),
    in_reply("http: no key is asked for", CHAT, _open_to_all),
]

FAULTS = [*CHAT_FAULTS, *OTHER_OPENAI_FAULTS, *RESPONSES_FAULTS, *MESSAGES_FAULTS, *CACHE_FAULTS, *TRANSPORT_FAULTS]
