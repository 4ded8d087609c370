"""A stream can be read again from any byte, live, by the key that made it, and by nobody else."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Fail, Wait, text_ids
from websockets.sync.client import connect

from tests.api import raw_http
from tests.api.live_server import LiveServer
from tests.api.resumable.streams import (
    CHAT,
    DIALECTS,
    attached,
    begin,
    body,
    code_of,
    endless,
    gated,
    leave_behind,
    look_up,
    post,
    read,
    stop,
    until,
    url,
)
from tests.live.toy_server import toy_server


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server() as live:
        live.engine.always(*text_ids("Hello wörld"))
        yield live


@pytest.mark.parametrize("path", DIALECTS)
def test_what_is_read_again_is_what_was_sent(server: LiveServer, path: str) -> None:
    sent = post(server, f"again{path}", path)
    assert sent.status_code == 200
    by_path = read(server, f"again{path}")
    assert by_path.content == sent.content and len(sent.content) > 100
    for name in ("content-type", "cache-control", "x-accel-buffering"):
        assert by_path.headers[name] == sent.headers[name]
    asked: dict[str, str | int] = {"conv_id": f"again{path}", "from": 50}
    assert httpx.get(f"{server.url}/v1/stream", params=asked).content == sent.content[50:]


def test_from_any_byte(server: LiveServer) -> None:
    sent = post(server, "bytes").content
    with httpx.Client(timeout=20) as http:
        for offset in [*range(0, len(sent), 61), len(sent) - 1, len(sent)]:
            assert http.get(url(server, "bytes"), params={"from": offset}).content == sent[offset:]
        for offset in (len(sent) + 1, 2**53 - 1):
            late = http.get(url(server, "bytes"), params={"from": offset})
            assert (late.status_code, late.content) == (200, b"")


def without_chance(data: bytes) -> bytes:
    """Without ids and times."""
    return re.sub(rb'("(?:id|item_id)":"[^"]*"|"[a-z_]*(?:_at|created|seed|_ms|_per_second)":[0-9.e-]+)', b"", data)


@pytest.mark.parametrize("path", DIALECTS)
def test_without_the_header_nothing_is_kept_and_every_byte_is_the_same(server: LiveServer, path: str) -> None:
    n_before = len(server.services.sessions)
    asked = {"model": "toy"} | DIALECTS[path]
    for _ in range(2):  # one event per token, whoever reads
        server.engine.play(*[action for token in text_ids("Hey") for action in (Wait(0.03), token)])
    plain = httpx.post(server.url + path, json=asked, timeout=20)
    assert len(server.services.sessions) == n_before
    named = post(server, "same", path)
    assert without_chance(named.content) == without_chance(plain.content)
    own = {"date", "x-request-id", "request-id"}
    assert {k: v for k, v in named.headers.items() if k not in own} == {
        k: v for k, v in plain.headers.items() if k not in own
    }


def test_a_client_that_leaves_loses_nothing(server: LiveServer) -> None:
    first, second = gated(server, "ab", "cd")
    leave_behind(server, "left")
    with httpx.stream("GET", url(server, "left"), timeout=20) as stream:
        assert stream.status_code == 200, "the headers come before any token"
        pieces = stream.iter_raw()
        data = next(pieces)
        server.on_loop(first.set)
        while b'"content":"b"' not in data:
            data += next(pieces)
        assert b'"content":"c"' not in data
        (row,) = look_up(server, "left")
        assert row["is_done"] is False and row["completed_at"] == 0 and row["total_bytes"] == len(data)
        server.on_loop(second.set)
        data += b"".join(pieces)
    assert data.endswith(b"data: [DONE]\n\n") and data == read(server, "left").content
    (row,) = look_up(server, "left")
    assert row["is_done"] is True and row["completed_at"] >= row["started_at"] > 1.7e9
    assert row["total_bytes"] == len(data)


def test_readers_of_one_stream_and_its_own_client_get_the_same(server: LiveServer) -> None:
    server.engine.play(*endless(60, 0.005))
    with attached(server, "many", max_tokens=60) as own:
        found: dict[int, bytes] = {}

        def follow(offset: int) -> None:
            found[offset] = read(server, "many", **{"from": offset}).content

        threads = [threading.Thread(target=follow, args=(offset,)) for offset in (0, 7, 1000, 5000)]
        for thread in threads:
            thread.start()
        whole = own.read()
        for thread in threads:
            thread.join(10)
    assert whole.endswith(b"data: [DONE]\n\n")
    assert found == {offset: whole[offset:] for offset in (0, 7, 1000, 5000)}


def test_an_offset_behind_the_end_waits_for_it(server: LiveServer) -> None:
    (gate,) = gated(server, "late")
    leave_behind(server, "behind")
    n_bytes = look_up(server, "behind")[0]["total_bytes"]
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(read(server, "behind", **{"from": n_bytes + 9}).content))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    server.on_loop(gate.set)
    thread.join(5)
    assert found == [read(server, "behind").content[n_bytes + 9 :]] and found[0]


@pytest.mark.parametrize("offset", ["12abc", "-1", "", "+1", "1.5", " 1", "1e3", "٣", "0x10", "9" * 30, str(2**53)])
def test_offsets_are_strict(server: LiveServer, offset: str) -> None:
    post(server, "strict")
    reply = read(server, "strict", **{"from": offset})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "from"), reply.text
    assert httpx.get(f"{server.url}/v1/stream", params={"conv_id": "strict", "from": offset}).status_code == 400


def test_names_that_nobody_uses(server: LiveServer) -> None:
    missing = read(server, "nobody")
    assert (missing.status_code, code_of(missing)) == (404, "stream_not_found")
    assert httpx.get(f"{server.url}/v1/stream").status_code == 400
    assert httpx.get(f"{server.url}/v1/stream?conv_id=").status_code == 400
    assert httpx.delete(f"{server.url}/v1/stream").status_code == 400
    assert stop(server, "nobody") == 204


@pytest.mark.parametrize("name", ["", "x" * 257, "tab\there", "grüße", "日本"])
def test_names_that_are_none(server: LiveServer, name: str) -> None:
    headers = [(b"x-conversation-id", name.encode())]
    reply = httpx.post(server.url + CHAT, json=body(), headers=headers, timeout=20)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "X-Conversation-Id"), reply.text


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


@given(NAMES | st.sampled_from(["a/b", "a:b", "a::b", "a/", "/a", "..", ".", "a//b", "%2F", "a?b#c", "a b", "x" * 256]))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_in_path_and_query(server: LiveServer, name: str) -> None:
    path = "".join(f"%{byte:02X}" for byte in name.encode())
    with httpx.Client(base_url=server.url, timeout=20) as http:
        sent = http.post(CHAT, json=body(max_tokens=2), headers={"x-conversation-id": name}).content
        assert http.get(f"/v1/stream?conv_id={path}").content == sent
        with raw_http.connect(server.url) as sock:
            sock.sendall(raw_http.head(f"/v1/stream/{path}?from=10", "connection: close", method="GET"))
            head, _, rest = raw_http.to_end(sock).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert unchunked(rest) == sent[10:]
        with raw_http.connect(server.url) as sock:
            sock.sendall(raw_http.head(f"/v1/stream/{path}", method="DELETE"))
            assert raw_http.answer(sock)[0] == 204
        assert http.get(f"/v1/stream?conv_id={path}").status_code == 404


def unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        found += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return found


def test_look_ups(server: LiveServer) -> None:
    names = ["look", "look::b", "look::b::c", "look:b", "lookx", "other"]
    for name in names:
        post(server, name, max_tokens=1)
    assert [row["conversation_id"] for row in look_up(server, "other", "look", "other", "")] == ["other", *names[:3]]
    assert [row["conversation_id"] for row in look_up(server, "look::b", "nobody")] == names[1:3]
    assert look_up(server) == []
    http = httpx.Client(base_url=server.url, timeout=20)
    with http:
        assert http.post("/v1/streams/lookup", json={"conversation_ids": ["a"] * 1000}).json() == []
        for wrong in ({"conversation_ids": ["a"] * 1001}, {"conversation_ids": [1]}, {"conversation_ids": "a"}, {}):
            assert http.post("/v1/streams/lookup", json=wrong).status_code == 400


def test_an_error_in_the_stream_is_of_its_bytes(server: LiveServer) -> None:
    server.engine.play(*text_ids("so far"), Fail(EngineFaulted("step failed")))
    sent = post(server, "failed").content
    assert b"engine_step_failed" in sent and b"[DONE]" not in sent
    assert read(server, "failed").content == sent


def test_signs_of_life_are_of_its_bytes() -> None:
    with toy_server(settings={"streams.keep_alive_s": 0.05}) as live:
        live.engine.play(Wait(0.2), *text_ids("ok"))
        sent = post(live, "alive").content
        assert sent.count(b": keep-alive\n\n") >= 2 and read(live, "alive").content == sent


def test_head_reads_nothing_and_waits_for_nothing(server: LiveServer) -> None:
    (gate,) = gated(server, "x")
    leave_behind(server, "head")
    reply = httpx.head(url(server, "head"), timeout=5)
    assert (reply.status_code, reply.content) == (200, b"")
    server.on_loop(gate.set)


def test_a_message_of_a_websocket_is_no_post(server: LiveServer) -> None:
    address = server.url.replace("http:", "ws:") + "/v1/responses"
    with connect(address, additional_headers={"x-conversation-id": "socket"}) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "toy", "input": "hi"}))
        while json.loads(socket.recv(10))["type"] != "response.completed":
            pass
    assert look_up(server, "socket") == []


# --- keys -------------------------------------------------------------------------------------------


def test_a_stream_is_its_keys_own() -> None:
    keys = ("alice-key", "bob-key")
    with toy_server(settings={"server.api_key": list(keys)}) as live:
        live.engine.always(*text_ids("ok"))
        alice, bob = (
            httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {key}"}, timeout=20) for key in keys
        )
        with alice, bob:
            named = {"x-conversation-id": "work"}
            asked: dict[str, Any] = {"conversation_ids": ["work"]}
            sent = alice.post(CHAT, json=body(), headers=named).content
            assert bob.get("/v1/stream/work").status_code == 404
            assert bob.post("/v1/streams/lookup", json=asked).json() == []
            assert bob.delete("/v1/stream/work").status_code == 204
            assert alice.get("/v1/stream/work").content == sent
            other = bob.post(CHAT, json=body(max_tokens=1), headers=named).content
            assert alice.get("/v1/stream/work").content == sent != other == bob.get("/v1/stream/work").content
            for method, path in (("GET", "/v1/stream/work"), ("DELETE", "/v1/stream?conv_id=work")):
                assert httpx.request(method, live.url + path).status_code == 401
            assert httpx.post(f"{live.url}/v1/streams/lookup", json=asked).status_code == 401
            assert bob.delete("/v1/stream/work").status_code == 204
            assert (alice.get("/v1/stream/work").status_code, bob.get("/v1/stream/work").status_code) == (200, 404)


def test_a_stream_without_stream_leaves_no_session(server: LiveServer) -> None:
    reply = httpx.post(server.url + CHAT, json=body(stream=False), headers={"x-conversation-id": "whole"}, timeout=20)
    assert reply.status_code == 200 and read(server, "whole").status_code == 404
    server.engine.play(Wait(60))
    sock = begin(server, "whole", stream=False)
    until(lambda: server.engine.n_running == 1)
    sock.close()
    assert until(lambda: server.engine.n_running == 0) < 0.25
    assert read(server, "whole").status_code == 404
