"""A small chat server for the suite to judge: it answers by a rule, and misbehaves as a test plants it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Rule = Callable[[dict[str, Any]], "Said"]

_SENTENCE = (
    "the keeper walked along a narrow path while gulls circled over grey water and nobody knew whose boat had come "
    "ashore that morning though its lamp still burned and a kettle stood warm on the stove beside three folded maps"
)
_WORDS = _SENTENCE.split()


@dataclass
class Said:
    content: str
    reasoning: str = ""
    finish: str = "stop"
    calls: list[dict[str, Any]] = field(default_factory=list)


def last_text(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def sensible(body: dict[str, Any]) -> Said:
    """What a good model would say, as far as the suite's checks go."""
    text = last_text(body)
    if body.get("tools"):
        name = body["tools"][0]["function"]["name"]
        arguments = {"text": "water the plants", "hour": 19} if name == "set_reminder" else {"state": "on"}
        return Said("", finish="tool_calls", calls=[{"name": name, "arguments": json.dumps(arguments)}])
    if "response_format" in body:
        return Said('{"level": "low", "amount": 3.5, "tags": ["home"]}')
    for cue, answer in _ANSWERS.items():
        if cue in text:
            return Said(answer(text) if callable(answer) else answer)
    seed = int(body.get("seed") or 0)
    return Said(f"Seed {seed}: " + " ".join(_WORDS[seed % 7 :]) + ".")


_ANSWERS: dict[str, Any] = {
    "BANANA42": "BANANA42",
    "17 + 25": "42",
    "7391": "7391",
    "capital of France": "Paris",
    "ZEBRA-9134": "ZEBRA-9134",
    "lucky number?": "Your lucky number is 271.",
    "Count from 1": "one, two, three, four, five, six, seven, eight, nine, ten",
    "The password is": lambda text: text.split("password is ")[1].partition(".")[0],
}


class _Handler(BaseHTTPRequestHandler):
    rule: Rule
    break_stream: Callable[[list[bytes]], list[bytes]]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "fake"}]}).encode(), "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = type(self).rule(body)
        if self.path.endswith("/messages"):
            blocks = [{"type": "thinking", "thinking": said.reasoning}] if said.reasoning else []
            reply = {"content": [*blocks, {"type": "text", "text": said.content}], "stop_reason": "end_turn"}
            self._send(200, json.dumps(reply).encode(), "application/json")
        elif body.get("stream"):
            self._send(200, b"".join(type(self).break_stream(_frames(said))), "text/event-stream")
        else:
            self._send(200, json.dumps({"choices": [_choice(said)]}).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _calls(said: Said) -> list[dict[str, Any]]:
    return [{"index": i, "function": call} for i, call in enumerate(said.calls)]


def _choice(said: Said) -> dict[str, Any]:
    message = {"content": said.content, "reasoning_content": said.reasoning, "tool_calls": _calls(said)}
    return {"message": message, "finish_reason": said.finish}


def _frames(said: Said) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"reasoning_content": said.reasoning}] if said.reasoning else []
    deltas += [{"content": piece} for piece in said.content.split(" ") if piece]
    for delta in deltas[1:]:
        if "content" in delta:
            delta["content"] = " " + delta["content"]
    if said.reasoning and len(deltas) > 1:
        deltas[1]["content"] = deltas[1]["content"].removeprefix(" ")
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {"tool_calls": _calls(said)}, "finish_reason": said.finish}]})
    return [*(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks), b"data: [DONE]\n\n"]


@contextlib.contextmanager
def fake_server(
    rule: Rule = sensible, break_stream: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
) -> Iterator[str]:
    """Yields its URL."""
    handler = type("Handler", (_Handler,), {"rule": staticmethod(rule), "break_stream": staticmethod(break_stream)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
