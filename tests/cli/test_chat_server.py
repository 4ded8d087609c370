"""`imp chat --url`: what is sent, what becomes of the reply, and every way in which a server can fail."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from imp_server.cli._chat_loop import ChatLoop
from imp_server.cli._chat_server import ServerModel
from imp_server.cli._conversation import Conversation
from imp_server.cli.main import run
from imp_server.core import ConfigError, UserFault

Json = dict[str, Any]


@dataclass
class Peer:
    """A server that replies with `frames`, waits for `hold`, and remembers what it was sent."""

    url: str = ""
    status: int = 200
    frames: list[str] = field(default_factory=list)
    hold: threading.Event | None = None
    on_hold: Any = None
    bodies: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    models: Json = field(default_factory=lambda: {"data": [{"id": "first"}, {"id": "second"}]})


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.reply("application/json", json.dumps(peer.models))

        def do_POST(self) -> None:
            peer.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            peer.headers.append({k.lower(): v for k, v in self.headers.items()})
            self.reply("text/event-stream", "".join(peer.frames))
            if peer.hold:
                peer.on_hold()
                peer.hold.wait(30)

        def reply(self, kind: str, text: str) -> None:
            self.send_response(peer.status)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(text.encode())
            self.wfile.flush()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        peer.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield peer
        if peer.hold:
            peer.hold.set()
        server.shutdown()
        thread.join()


def frame(delta: Json | None = None, finish: str | None = None, **rest: Any) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return f"data: {json.dumps({'choices': choices, **rest})}\n\n"


USAGE = {"completion_tokens": 7, "prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 5}}
WHOLE = [
    ": a comment\n\n",
    frame({"role": "assistant", "content": ""}),
    frame({"reasoning_content": "let me see"}),
    frame({"content": "Hello, "}),
    frame({"content": "wörld"}),
    frame({}, "length"),
    frame(usage=USAGE),
    "data: [DONE]\n\n",
]


def loop(peer: Peer, model: str = "", key: str = "", **settings: Any) -> ChatLoop:
    return ChatLoop(ServerModel.connect(peer.url, key, model), Conversation(**settings), colour=False)


def test_an_answer_streams_and_becomes_history(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.frames = WHOLE
    chat = loop(peer, key="secret", system="be kind")
    result = chat.ask("hi")
    out = capsys.readouterr()
    assert out.out == "let me see\n\nHello, wörld\n"
    assert "7 tokens" in out.err and "prompt 20, 5 cached" in out.err and "cut by the token limit" in out.err
    assert (result.text, result.reasoning) == ("Hello, wörld", "let me see")
    chat.ask("again")
    assert peer.bodies[0] == {
        "model": "first",
        "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }, "a field that nobody set isn't sent"
    sent = peer.bodies[1]["messages"]
    assert sent[2] == {"role": "assistant", "content": "Hello, wörld", "reasoning_content": "let me see"}
    assert peer.headers[0]["authorization"] == "Bearer secret"


def test_settings_are_sent(peer: Peer) -> None:
    peer.frames = WHOLE
    chat = loop(peer, "second")
    for setting in ("temperature 0", "top_k 3", "max_tokens 9", "thinking false", "ignore_eos true"):
        chat.command(f"/set {setting}")
    chat.ask("hi")
    sent = peer.bodies[0]
    assert sent["model"] == "second" and "authorization" not in peer.headers[0]
    assert (sent["temperature"], sent["top_k"], sent["max_tokens"], sent["ignore_eos"]) == (0, 3, 9, True)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}


def test_ctrl_c_keeps_what_had_come(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.frames = WHOLE[:4]
    peer.hold = threading.Event()
    # When the pieces have been read the main thread waits for more: the signal comes then.
    peer.on_hold = lambda: threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    chat = loop(peer)
    assert chat.ask("hi").stopped
    out = capsys.readouterr()
    assert "Hello, " in out.out and "at least 2 tokens · first" in out.err and "stopped" in out.err
    assert chat.conversation.messages[-1].reasoning == "let me see"


@pytest.mark.parametrize(
    ("status", "frames", "part"),
    [
        (401, ['{"error": {"message": "who are you?", "code": "x"}}'], "401: who are you?"),
        (404, ["<html>not here"], "404: <html>not here"),
        (500, [], "500: nothing"),
        (200, WHOLE[:4], "breaks off"),
        (200, [*WHOLE[:4], 'data: {"error": {"message": "out of memory"}}\n\n'], "out of memory"),
        (200, [*WHOLE[:4], 'error: {"message": "out of memory"}\n\n'], "out of memory"),
        (200, ["data: {half\n\n"], "no chat completion"),
    ],
)
def test_a_server_that_fails(peer: Peer, status: int, frames: list[str], part: str) -> None:
    chat = loop(peer, "m")
    peer.status, peer.frames = status, frames
    with pytest.raises(UserFault) as caught:
        chat.ask("hi")
    assert part in caught.value.message
    assert chat.conversation.messages == [], "a question that wasn't answered is taken back"


def test_who_is_there(peer: Peer) -> None:
    assert ServerModel.connect(peer.url + "/v1/", "", "").model == "first"
    assert ServerModel.connect(peer.url.removeprefix("http://"), "", "").url == peer.url
    peer.models = {"data": []}
    with pytest.raises(UserFault, match="lists no model"):
        ServerModel.connect(peer.url, "", "")
    with pytest.raises(ConfigError, match="no address"):
        ServerModel.connect("ftp://x", "", "")
    with pytest.raises(UserFault, match="no answer"):
        ServerModel.connect("http://127.0.0.1:9", "", "")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--url", "127.0.0.1:9", "--threads", "2"], "--cpu-threads can't be set from here"),
        (["--url", "127.0.0.1:9", "--set", "model.path=x"], "--set can't be set from here"),
        (["--key", "k"], "--key belongs to --url"),
        (["--url", "127.0.0.1:9"], "no answer from http://127.0.0.1:9"),
    ],
)
def test_the_command_refuses(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "--prompt", "hi", *arguments]) == 1
    assert part in capsys.readouterr().err


def test_the_command_asks_the_server(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.frames = WHOLE
    assert run(["chat", "second", "--url", peer.url, "--prompt", "hi", "--seed", "4"]) == 0
    assert "wörld" in capsys.readouterr().out
    assert peer.bodies[0]["model"] == "second" and peer.bodies[0]["seed"] == 4


def test_ps_lists_what_a_server_serves(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.models = {"data": [{"id": "tiny", "loaded": True, "meta": {"size": 1500, "n_ctx": 4096}}, {"id": "other"}]}
    assert run(["ps", "--url", peer.url]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "STATE", "SIZE", "CONTEXT"]
    assert first.split() == ["tiny", "loaded", "1.5", "kB", "4,096"] and second.split() == ["other"]
    assert run(["ps", "--url", peer.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == peer.models["data"]
    peer.models = {"data": []}
    assert run(["ps", "--url", peer.url]) == 0 and "no model" in capsys.readouterr().out
    peer.models = {"models": 1}
    assert run(["ps", "--url", peer.url]) == 1
    assert run(["ps", "--url", "127.0.0.1:1"]) == 1
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
