"""The 17 checks of the Open Responses compliance suite, release 2026-04-24, on any server that is running.

    pip install openresponses-types httpx websockets
    python conformance/open_responses.py --url http://127.0.0.1:8080 [--key KEY] [--model NAME] [--only ID,ID] [--json]

The suite itself is TypeScript in a repository and in no package registry, npm's included, so its checks are written
anew here, under its ids and with requests of the same shape. What they hold replies against isn't ours:
openresponses-types is made from the published document.
As in the suite all checks run at once, a turn of a WebSocket has 30 seconds, and a status of completed is asked for
only where the suite does: not of a response that calls, nor of those that only prepare or follow the failure under
test. Exit code 0 = all passed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import openresponses_types as published
from pydantic import BaseModel, ValidationError
from websockets.asyncio.client import ClientConnection, connect

Json = dict[str, Any]
TURN_S = 30.0
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_SENT = re.compile(r"^data:(.*)\n\n", re.MULTILINE)
"""An event that has ended: its line, then an empty one."""
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
_EVENTS: list[type[BaseModel]] = [
    kind for name, kind in vars(published).items() if name.endswith("StreamingEvent") and name.startswith("Response")
]
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place, now.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "A city and its country."}},
        "required": ["location"],
    },
}


class Failed(Exception):
    """A check didn't hold; the message says which."""


@dataclass(frozen=True)
class Target:
    base: str
    """URL with /v1."""
    key: str
    model: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@dataclass
class Turn:
    """What a server sent in answer to one request."""

    events: list[Json] = field(default_factory=list)
    response: Json | None = None
    error: str | None = None
    """Code of an error event, or of a failed response."""
    faults: list[str] = field(default_factory=list)
    """Of the events that are in no published type, or don't fit theirs."""


def _none_wrong(faults: list[str]) -> None:
    _must(not faults, "; ".join(faults[:3]))


def _must(holds: object, message: str) -> None:
    if not holds:
        raise Failed(message)


def _fits(kind: type[BaseModel], value: Any) -> None:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        places = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5]]
        raise Failed(f"{kind.__name__}: {'; '.join(places)}") from None


def _event_fits(event: Json) -> None:
    name = "".join(part.title().replace("_", "") for part in str(event.get("type", "")).split(".")[1:])
    kind = next((kind for kind in _EVENTS if kind.__name__ == f"Response{name}StreamingEvent"), None)
    if event.get("type") == "error":
        kind = published.WebSocketErrorEvent if "status" in event else published.ErrorStreamingEvent
    _must(kind is not None, f"the event {event.get('type')!r} is in no published type")
    assert kind is not None
    _fits(kind, event)


def _is_response(response: Any) -> Json:
    _fits(published.ResponseResource, response)
    checked: Json = response
    return checked


def _is_completed(response: Any) -> Json:
    checked = _is_response(response)
    _must(checked["status"] == "completed", f"its status is {checked['status']}, not completed")
    return checked


def _faults(events: list[Json]) -> list[str]:
    found = []
    for event in events:
        try:
            _event_fits(event)
        except Failed as failed:
            found.append(str(failed))
    return found


def _has(response: Json, kind: str) -> None:
    _must(any(item["type"] == kind for item in response["output"]), f"no output item is a {kind}")


# --- HTTP -------------------------------------------------------------------------------------------


async def _post(target: Target, body: Json, path: str = "/responses") -> httpx.Response:
    async with httpx.AsyncClient(timeout=600) as client:
        return await client.post(target.base + path, json=body, headers=target.headers)


def _body(reply: httpx.Response) -> Any:
    _must(reply.status_code == 200, f"HTTP {reply.status_code}: {reply.text[:300]}")
    kind = reply.headers.get("content-type", "none")
    _must("application/json" in kind, f"its content type is {kind}, not application/json")
    return reply.json()


async def _answered(target: Target, said: Any, **more: Any) -> Json:
    response = _is_response(_body(await _post(target, {"model": target.model, "input": said, **more})))
    _must(response["output"], "it has no output")
    return response


async def _completed(target: Target, said: Any) -> None:
    _is_completed(await _answered(target, said))


def _said(role: str, content: Any, **more: Any) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


async def basic_response(target: Target) -> None:
    await _completed(target, [_said("user", "Greet me in three words.")])


async def assistant_phase(target: Target) -> None:
    """The history begins with the assistant, which has two messages in a row."""
    turns = [
        _said("assistant", "I add the numbers.", phase="commentary"),
        _said("assistant", "It is four.", phase="final_answer"),
        _said("user", "Say the number again."),
    ]
    await _completed(target, turns)


async def response_output_phase_schema(_target: Target) -> None:
    """Of the published types alone: an assistant's message may say which phase it is of."""
    part = {"type": "output_text", "text": "x", "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [part]}
    for phase in ("commentary", "final_answer"):
        _fits(published.Message, item | {"phase": phase})
    _must("phase" in published.Message.model_fields, "a message of the published types has no phase")


async def streaming_response(target: Target) -> None:
    body = {"model": target.model, "input": [_said("user", "Count to five.")], "stream": True}
    reply = await _post(target, body)
    _must(reply.status_code == 200, f"HTTP {reply.status_code}: {reply.text[:300]}")
    lines = [line.strip() for line in _SENT.findall(reply.text)]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    _must(events, "no event came")
    _none_wrong(_faults(events))
    last = [event for event in events if event["type"] in _ENDS]
    _is_completed(last[-1]["response"] if last else None)


async def system_prompt(target: Target) -> None:
    await _completed(target, [_said("system", "You are a sailor and talk like one."), _said("user", "Greet me.")])


async def tool_calling(target: Target) -> None:
    response = await _answered(target, [_said("user", "What is the weather in Bern, Switzerland?")], tools=[WEATHER])
    _has(response, "function_call")


async def image_input(target: Target) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{_PIXEL}"}
    await _completed(target, [_said("user", [{"type": "input_text", "text": "What is this?"}, image])])


async def multi_turn(target: Target) -> None:
    turns = [_said("user", "I am Ada."), _said("assistant", "Good day, Ada."), _said("user", "Who am I?")]
    await _completed(target, turns)


async def _compacted(target: Target, turns: list[Json], **more: Any) -> Json:
    body = _body(await _post(target, {"model": target.model, "input": turns, **more}, "/responses/compact"))
    _fits(published.CompactResource, body)
    _has(body, "compaction")
    checked: Json = body
    return checked


async def compact_response(target: Target) -> None:
    turns = [_said("user", "We meet on Friday, and Bo is told first."), _said("assistant", "Bo first, then Friday.")]
    body = await _compacted(target, turns, prompt_cache_key="compaction")
    _must(body["object"] == "response.compaction", f"the object is {body['object']}")


async def compact_missing_model(target: Target) -> None:
    reply = await _post(target, {"input": [_said("user", "Shorten this.")]}, "/responses/compact")
    _must(reply.status_code in (400, 422), f"HTTP {reply.status_code} where 400 or 422 was due")


# --- WebSocket --------------------------------------------------------------------------------------


class Socket:
    """One connection, on which turns are taken one after the other."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection: ClientConnection | None = None

    async def __aenter__(self) -> Socket:
        url = self._target.base.replace("http", "ws", 1) + "/responses"
        headers = self._target.headers | {"content-type": "application/json"}
        self._connection = await connect(url, additional_headers=headers, max_size=None)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._connection is not None
        await self._connection.close()

    async def turn(self, said: Any, **more: Any) -> Turn:
        assert self._connection is not None
        body = {"type": "response.create", "model": self._target.model, "input": said, **more}
        await self._connection.send(json.dumps(body))
        turn = Turn()
        async with asyncio.timeout(TURN_S):
            while turn.response is None and turn.error is None:
                event = json.loads(await self._connection.recv())
                turn.events.append(event)
                if event["type"] in _ENDS:
                    turn.response = event["response"]
                    turn.error = (event["response"].get("error") or {}).get("code")
                elif event["type"] == "error":
                    turn.error = event["error"]["code"]
        turn.faults = _faults(turn.events)
        return turn

    async def answered(self, said: Any, **more: Any) -> Json:
        """A response, of whatever status."""
        turn = await self.turn(said, store=False, **more)
        _none_wrong(turn.faults)
        return _is_response(turn.response)

    async def completed(self, said: Any, **more: Any) -> None:
        turn = await self.turn(said, **more)
        _must(turn.error is None, f"the turn ended with the error {turn.error}")
        _none_wrong(turn.faults)
        _is_completed(turn.response)

    async def missing(self, said: Any, previous: str) -> None:
        turn = await self.turn(said, store=False, previous_response_id=previous)
        _must(turn.error == "previous_response_not_found", f"the error is {turn.error}")
        _none_wrong(turn.faults)


async def websocket_response(target: Target) -> None:
    async with Socket(target) as socket:
        await socket.completed([_said("user", "Count to three.")])


async def websocket_sequential_responses(target: Target) -> None:
    async with Socket(target) as socket:
        for word in ("first", "second"):
            await socket.completed(f"Say the word {word}.", store=False)


async def websocket_continuation(target: Target) -> None:
    async with Socket(target) as socket:
        first = await socket.answered("The word is amber. Say yes.")
        await socket.completed("Which word was it?", store=False, previous_response_id=first["id"])


async def websocket_reconnect_store_false_recovery(target: Target) -> None:
    async with Socket(target) as socket:
        first = await socket.answered("The word is copper. Say yes.")
    async with Socket(target) as socket:
        await socket.missing("Which word was it?", first["id"])
        await socket.answered([_said("user", "Let us begin anew. Say yes.")])


async def websocket_previous_response_not_found(target: Target) -> None:
    async with Socket(target) as socket:
        await socket.missing("Go on.", "resp_that_never_was")


async def websocket_failed_continuation_evicts_cache(target: Target) -> None:
    async with Socket(target) as socket:
        first = await socket.answered("The word is ember. Say yes.")
        stray = {"type": "function_call_output", "call_id": "call_that_never_was", "output": "nothing"}
        failed = await socket.turn([stray], store=False, previous_response_id=first["id"])
        _must(failed.error is not None, "the output of a call that nobody made was taken")
        await socket.missing("Which word was it?", first["id"])


async def websocket_compact_new_chain(target: Target) -> None:
    """Content as parts; what the assistant said carries no annotations. The output goes back as it came."""
    asked = [{"type": "input_text", "text": text} for text in ("The word is slate.", "Sum this up.")]
    turns = [_said("user", asked[:1]), _said("assistant", [{"type": "output_text", "text": "Yes."}])]
    base = (await _compacted(target, [*turns, _said("user", asked[1:])]))["output"]
    async with Socket(target) as socket:
        await socket.completed([*base, _said("user", "Go on. Say yes.")], store=False, tools=[])


CHECKS: tuple[Callable[[Target], Awaitable[None]], ...] = (
    basic_response,
    assistant_phase,
    response_output_phase_schema,
    streaming_response,
    websocket_response,
    websocket_sequential_responses,
    websocket_continuation,
    websocket_reconnect_store_false_recovery,
    websocket_previous_response_not_found,
    websocket_failed_continuation_evicts_cache,
    websocket_compact_new_chain,
    system_prompt,
    tool_calling,
    image_input,
    multi_turn,
    compact_response,
    compact_missing_model,
)


def id_of(check: Callable[[Target], Awaitable[None]]) -> str:
    return getattr(check, "__name__", "").replace("_", "-")


async def _outcome(target: Target, check: Callable[[Target], Awaitable[None]]) -> tuple[str, str]:
    """(id, why it failed; "" if it passed)."""
    try:
        await check(target)
    except Failed as failed:
        return id_of(check), str(failed)
    except TimeoutError:
        return id_of(check), f"a turn took more than {TURN_S:g} seconds"
    except Exception as error:
        return id_of(check), f"{type(error).__name__}: {error}"
    return id_of(check), ""


async def outcomes(target: Target, only: frozenset[str] = frozenset()) -> dict[str, str]:
    """By id, why a check failed; "" if it passed."""
    chosen = [check for check in CHECKS if not only or id_of(check) in only]
    return dict(await asyncio.gather(*(_outcome(target, check) for check in chosen)))


def _model_of(base: str, key: str) -> str:
    reply = httpx.get(f"{base}/models", headers={"authorization": f"Bearer {key}"}, timeout=30)
    return str(reply.raise_for_status().json()["data"][0]["id"])


def main() -> int:
    parser = argparse.ArgumentParser(description="The checks of the Open Responses compliance suite.")
    parser.add_argument("--url", required=True, help="of the server, with or without /v1")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="", help="the first that /v1/models lists")
    parser.add_argument("--only", default="", help="ids, separated by commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    base = options.url.rstrip("/").removesuffix("/v1") + "/v1"
    target = Target(base, options.key, options.model or _model_of(base, options.key))
    found = asyncio.run(outcomes(target, frozenset(filter(None, options.only.split(",")))))
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, why in found.items():
            print(f"{'FAILED' if why else 'passed'}  {name}{': ' if why else ''}{why}")
        print(f"{sum(not why for why in found.values())} of {len(found)} passed")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
