"""Responses over WebSocket: the events of HTTP, the state of a connection, and what bounds it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from imp_server.core import EngineFaulted
from imp_server.dialects.openai_responses.turns import TurnMemory
from imp_server.engine.client.scripted import Fail, Wait, text_ids
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.api.live_server import LiveServer
from tests.live.toy_server import openai_sdk, prompt_of, toy_server
from tests.toy import CHATML

Json = dict[str, Any]
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(CHATML) as live:
        live.engine.always(text_ids("Hello"))
        yield live


def url_of(server: LiveServer, path: str = "/v1/responses") -> str:
    return server.url.replace("http:", "ws:") + path


def opened(server: LiveServer, **headers: str) -> Connection:
    return connect(url_of(server), additional_headers=headers, open_timeout=10, close_timeout=2)


def can_open(server: LiveServer) -> bool:
    opened(server).close()
    return True


@pytest.fixture
def socket(server: LiveServer) -> Iterator[Connection]:
    with opened(server) as one:
        yield one


def events_of(socket: Connection) -> list[Json]:
    events: list[Json] = []
    while not events or events[-1]["type"] not in ENDS:
        events.append(json.loads(socket.recv(10)))
    return events


def ask(socket: Connection, **body: Any) -> list[Json]:
    socket.send(json.dumps({"type": "response.create", "model": "toy"} | body))
    return events_of(socket)


def answered(socket: Connection, **body: Any) -> Json:
    [*_, last] = ask(socket, **body)
    assert last["type"] == "response.completed", last
    response: Json = last["response"]
    return response


def refused(socket: Connection, **body: Any) -> Json:
    [error] = ask(socket, **body)
    assert error["type"] == "error" and error["error"]["message"] == error["message"]
    assert (error["error"]["code"], error["error"]["param"]) == (error["code"], error["param"])
    return error


def timeless(event: Json) -> Json:
    text = json.dumps(event)
    if "response" in event:
        own = event["response"]["id"].removeprefix("resp_")
        event = json.loads(text.replace(own, "X"))
        event["response"] |= {"created_at": 0, "completed_at": 0, "timings": {}, "usage": {}}
    return event


# --- the events -------------------------------------------------------------------------------------


def test_the_events_are_those_of_http(server: LiveServer, socket: Connection) -> None:
    body = {"model": "toy", "input": "hi", "temperature": 0.5}
    sent = httpx.post(f"{server.url}/v1/responses", json=body | {"stream": True}).text
    over_http = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
    over_socket = ask(socket, **body)
    assert [e["type"] for e in over_socket] == [e["type"] for e in over_http]
    assert [set(e) for e in over_socket] == [set(e) for e in over_http]
    for one, other in zip(over_socket, over_http, strict=True):
        if "response" in one:
            assert timeless(one) == timeless(other)
    validators = server.services.validators
    operation = next(o for o in server.services.contract.operations if o.id == "openai_responses.create_response")
    for event in over_socket:
        validators.check_event(operation, {"event": event["type"], "data": event})


def test_the_official_sdk(server: LiveServer) -> None:
    with openai_sdk(server).responses.connect() as connection:
        for text in ("one", "two"):
            connection.response.create(model="toy", input=text, store=False)
            for event in connection:
                if event.type == "response.completed":
                    assert event.response.output_text == "Hello"
                    break


def test_one_connection_answers_one_message_after_the_other(socket: Connection) -> None:
    assert answered(socket, input="a")["id"] != answered(socket, input="b")["id"]


def test_a_binary_message_is_one_too(socket: Connection) -> None:
    socket.send(b'{"type": "response.create", "model": "toy", "input": "\xff"}')
    assert events_of(socket)[-1]["code"] == "invalid_json"
    socket.send(b'{"type": "response.create", "model": "toy", "input": "hi"}')
    assert events_of(socket)[-1]["type"] == "response.completed"


# --- validation -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"input": 5}, "input"),
        ({"type": "response.cancel"}, "type"),
        ({"generate": "no"}, "generate"),
        ({"stream": True}, "stream"),
        ({"stream": False}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"background": False}, "background"),
        ({"model": "other"}, "model"),
    ],
)
def test_what_is_wrong_is_named_and_the_connection_lives(socket: Connection, more: Json, param: str) -> None:
    error = refused(socket, **{"input": "hi"} | more)
    assert error["param"] == param and error["status"] in (400, 404)
    assert answered(socket, input="hi")["status"] == "completed"


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "3", '{"type": "response.create"', "[" * 5000])
def test_what_is_no_message(socket: Connection, text: str) -> None:
    socket.send(text)
    assert events_of(socket)[-1]["status"] == 400
    assert answered(socket, input="hi")["status"] == "completed"


def test_what_had_no_effect_is_told(socket: Connection) -> None:
    first = ask(socket, input="hi", temprature=1, tools=[{"type": "web_search"}])[0]
    assert first["imp_ignored_fields"] == "/temprature, /tools/0"
    assert "imp_ignored_fields" not in ask(socket, input="hi")[0]


# --- what a connection remembers ----------------------------------------------------------------------


def test_an_unstored_response_is_continued_on_its_connection_alone(server: LiveServer, socket: Connection) -> None:
    first = answered(socket, input="cobalt", store=False)
    second = answered(socket, input="which?", store=False, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert prompt_of(server).index("cobalt") < prompt_of(server).index("Hello") < prompt_of(server).index("which?")
    answered(socket, input="and?", store=False, previous_response_id=second["id"])
    assert prompt_of(server).count("Hello") == 2
    with opened(server) as other:
        error = refused(other, input="which?", previous_response_id=first["id"])
        assert (error["code"], error["status"]) == ("previous_response_not_found", 400)
        assert error["param"] == "previous_response_id"
        assert answered(other, input="anew", store=False)["status"] == "completed"


def test_a_stored_response_is_found_everywhere(server: LiveServer, socket: Connection) -> None:
    first = answered(socket, input="cobalt")
    assert first["store"] is True
    assert httpx.get(f"{server.url}/v1/responses/{first['id']}").json()["id"] == first["id"]
    with opened(server) as other:
        answered(other, input="which?", previous_response_id=first["id"])
    assert "cobalt" in prompt_of(server)


def test_what_continues_an_unstored_response_is_not_stored(server: LiveServer, socket: Connection) -> None:
    first = answered(socket, input="cobalt", store=False)
    second = answered(socket, input="which?", previous_response_id=first["id"])
    assert second["store"] is False
    assert httpx.get(f"{server.url}/v1/responses/{second['id']}").status_code == 404
    assert refused(socket, input="x", previous_response_id=second["id"], store=True)["param"] == "store"


@pytest.mark.parametrize(
    "bad",
    [
        {"input": [{"type": "function_call_output", "call_id": "call_none", "output": "x"}]},
        {"input": "x", "temperature": 9},
    ],
)
def test_a_turn_that_fails_evicts_what_it_continued(socket: Connection, bad: Json) -> None:
    first = answered(socket, input="ember", store=False)
    assert refused(socket, **bad, store=False, previous_response_id=first["id"])["status"] == 400
    again = refused(socket, input="go on", store=False, previous_response_id=first["id"])
    assert again["code"] == "previous_response_not_found"


def test_a_turn_that_fails_midway_evicts_too(server: LiveServer, socket: Connection) -> None:
    first = answered(socket, input="ember", store=False)
    server.engine.play(text_ids("so"), Fail(EngineFaulted("broken")))
    events = ask(socket, input="x", store=False, previous_response_id=first["id"])
    while events[-1]["type"] == "error":
        events = events_of(socket)
    assert events[-1]["type"] == "response.failed"
    assert refused(socket, input="x", previous_response_id=first["id"])["code"] == "previous_response_not_found"


def test_generate_false_computes_the_prompt_and_writes_nothing(server: LiveServer, socket: Connection) -> None:
    warm = answered(socket, input="prepare", store=False, generate=False)
    assert warm["output"] == [] and warm["usage"]["output_tokens"] == 0 < warm["usage"]["input_tokens"]
    assert answered(socket, input="go", store=False, previous_response_id=warm["id"])["output"]
    assert "prepare" in prompt_of(server)


def test_memory_has_a_bound() -> None:
    memory = TurnMemory()
    for i in range(100):
        memory.remember({"id": f"r{i}", "previous_response_id": None, "output": []}, [], [{"id": f"i{i}"}])
    assert memory.conversation("r99") == [{"id": "i99"}] and memory.conversation("r0") is None
    assert memory.item("i99") == {"id": "i99"} and memory.item("i0") is None
    big = {"id": "big", "text": "x" * (17 << 20)}
    memory.remember({"id": "r", "previous_response_id": "r99", "output": []}, [], [big])
    assert memory.conversation("r") is None and memory.conversation("r99") is not None


# --- the handshake ------------------------------------------------------------------------------------


def status_of(server: LiveServer, path: str = "/v1/responses", **headers: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        connect(url_of(server, path), additional_headers=headers, open_timeout=10)
    response = caught.value.response
    return response.status_code, json.loads(bytes(response.body or b"{}"))["error"]["code"]


def test_the_key_is_asked_for_at_the_handshake() -> None:
    with toy_server(CHATML, settings={"server.api_key": ("secret",)}) as live:
        live.engine.always(text_ids("ok"))
        assert status_of(live) == (401, "invalid_api_key")
        assert status_of(live, authorization="Bearer wrong") == (401, "invalid_api_key")
        for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
            with opened(live, **headers) as socket:
                assert answered(socket, input="hi")["status"] == "completed"
        live.services.draining = True  # comes before the key, as for every request
        assert status_of(live) == (503, "draining")


def test_pages_of_others_are_kept_out() -> None:
    with toy_server(CHATML, settings={"server.cors_origins": ("https://mine.example",)}) as live:
        assert status_of(live, origin="https://evil.example") == (403, "forbidden")
        assert status_of(live, origin="null") == (403, "forbidden")
        for origin in ("https://mine.example", live.url):
            opened(live, origin=origin).close()


def test_it_is_where_the_route_is() -> None:
    with toy_server(CHATML, settings={"server.api_prefix": "/llm"}) as live:
        live.engine.always(text_ids("ok"))
        for path in ("/llm/v1/responses", "/llm/responses", "/llm/v1/responses?x=1"):
            with connect(url_of(live, path), open_timeout=10) as socket:
                assert answered(socket, input="hi")["status"] == "completed"
        for path in ("/v1/responses", "/llm/x/responses"):
            assert status_of(live, path) == (404, "unknown_url")


def test_there_is_no_other_path_for_it(server: LiveServer) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect(url_of(server, "/v1/models"), open_timeout=10)
    assert caught.value.response.status_code in (200, 404)  # the offer is refused, or it is as if there were none


def test_it_can_be_switched_off() -> None:
    with toy_server(CHATML, settings={"responses.sockets": "off"}) as live:
        assert status_of(live)[0] == 405


# --- bounds -------------------------------------------------------------------------------------------


def test_the_number_of_connections_is_bounded() -> None:
    with toy_server(CHATML, settings={"responses.max_sockets": 2}) as live:
        live.engine.always(text_ids("ok"))
        first, second = opened(live), opened(live)
        assert status_of(live) == (429, "rate_limit_exceeded")
        first.close()
        eventually(lambda: can_open(live))
        assert answered(second, input="hi")["status"] == "completed"
        second.close()


def eventually(attempt: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if attempt():
                return
        except InvalidStatus:
            pass
        time.sleep(0.02)
    pytest.fail("it never came true")


def test_it_has_its_place_among_the_connections_and_leaves_it() -> None:
    with toy_server(CHATML) as live:
        live.engine.always(text_ids("ok"))
        table = live.services.admission.connections
        with opened(live) as socket:
            assert len(table) == 1
            assert answered(socket, input="hi")["status"] == "completed"
        eventually(lambda: len(table) == 0)
        assert status_of(live, origin="https://evil.example")[0] == 403
        eventually(lambda: len(table) == 0)


def close_code(socket: Connection) -> int | None:
    with pytest.raises(ConnectionClosed) as caught:
        socket.recv(10)
    return caught.value.rcvd.code if caught.value.rcvd else None


def test_a_message_is_bounded() -> None:
    with toy_server(CHATML, settings={"responses.socket_message_mib": 1}) as live, opened(live) as socket:
        live.engine.always(text_ids("ok"))
        assert refused(socket, input="x" * 900_000)["code"] == "context_length_exceeded"
        socket.send(json.dumps({"type": "response.create", "model": "toy", "input": "x" * 1_100_000}))
        assert close_code(socket) == 1009


def test_the_frames_of_a_message_are_bounded(server: LiveServer) -> None:
    for size in (0, 1):
        with opened(server) as socket:
            socket.protocol.send_text(b"{", fin=False)
            for _ in range(2100):
                socket.protocol.send_continuation(b" " * size, fin=False)
            with socket.protocol_mutex, contextlib.suppress(ConnectionError):  # it may be closed before all is sent
                socket.send_data()
            assert close_code(socket) in (1009, None), "None: what was sent after the end reset the connection"


def begin_message(socket: Connection, n_bytes: int) -> None:
    """The first frame of a message that goes on."""
    with socket.protocol_mutex:
        socket.protocol.send_text(b" " * n_bytes, fin=False)
        socket.send_data()


def test_a_message_being_received_counts_as_a_body_does() -> None:
    with toy_server(CHATML, settings={"server.max_body_memory_mib": 1, "server.max_body_mib": 2}) as live:
        live.engine.always(text_ids("ok"))
        bodies = live.services.admission.bodies
        with opened(live) as first, opened(live) as second:
            begin_message(first, 700_000)
            eventually(lambda: bodies.n_taken >= 700_000)
            first.ping().wait(5)
            begin_message(second, 700_000)
            assert close_code(second) == 1013
            assert httpx.post(f"{live.url}/v1/responses", content=b" " * 700_000).status_code in (415, 503)
            with first.protocol_mutex:
                first.protocol.send_continuation(b"{}", fin=True)
                first.send_data()
            assert events_of(first)[-1]["type"] == "error"
            assert answered(first, input="hi")["status"] == "completed"
        eventually(lambda: bodies.n_taken == 0)


def test_a_message_that_stalls_ends_its_connection() -> None:
    settings = {"server.body_timeout_s": 0.2, "server.head_timeout_s": 0.2}  # the second: how often it is looked
    with toy_server(CHATML, settings=settings) as live, opened(live) as quiet, opened(live) as socket:
        live.engine.always(text_ids("ok"))
        begin_message(socket, 10)
        assert close_code(socket) is None
        assert answered(quiet, input="hi")["status"] == "completed"


def test_a_message_has_no_more_parts_than_a_body() -> None:
    with toy_server(CHATML, settings={"server.max_json_containers": 50}) as live, opened(live) as socket:
        error = refused(socket, input="hi", metadata_of_mine=[[] for _ in range(60)])
        assert error["status"] == 400 and "arrays and objects; at most 50" in error["message"]


def test_an_idle_connection_is_closed() -> None:
    with toy_server(CHATML, settings={"responses.socket_idle_s": 0.3}) as live, opened(live) as socket:
        live.engine.always(text_ids("ok"), Wait(0.5))
        assert answered(socket, input="hi")["status"] == "completed", "what is being made isn't idle"
        assert close_code(socket) == 1000


def test_an_old_connection_takes_no_more() -> None:
    with toy_server(CHATML, settings={"responses.socket_age_s": 0.4}) as live, opened(live) as socket:
        live.engine.always(text_ids("ok"), Wait(0.6))
        assert answered(socket, input="hi")["status"] == "completed"
        error = json.loads(socket.recv(10))
        assert (error["type"], error["code"]) == ("error", "websocket_connection_limit_reached")
        assert close_code(socket) == 1000


def test_one_response_at_a_time(server: LiveServer, socket: Connection) -> None:
    server.engine.play(text_ids("slow"), Wait(0.4))
    create = json.dumps({"type": "response.create", "model": "toy", "input": "hi"})
    for _ in range(3):
        socket.send(create)
    events = [json.loads(socket.recv(10)) for _ in range(2)]
    while sum(e["type"] == "response.completed" for e in events) < 2:
        events.append(json.loads(socket.recv(10)))
    lives = [e["type"] for e in events if e["type"] in ("response.created", "response.completed", "error")]
    assert lives.count("error") == 1 and next(e for e in events if e["type"] == "error")["status"] == 429
    assert [kind for kind in lives if kind != "error"] == ["response.created", "response.completed"] * 2


def test_a_client_that_leaves_frees_its_row(server: LiveServer) -> None:
    server.engine.play(text_ids("on"), Wait(60))
    socket = opened(server)
    socket.send(json.dumps({"type": "response.create", "model": "toy", "input": "hi"}))
    assert json.loads(socket.recv(10))["type"] == "response.created"
    assert server.on_loop(lambda: server.engine.n_running) == 1
    socket.close()
    eventually(lambda: server.on_loop(lambda: server.engine.n_running) == 0)


def test_a_client_that_waits_its_turn_may_leave_too(server: LiveServer) -> None:
    server.engine.play(text_ids("on"), Wait(60))
    socket = opened(server)
    for _ in range(2):
        socket.send(json.dumps({"type": "response.create", "model": "toy", "input": "hi"}))
    assert json.loads(socket.recv(10))["type"] == "response.created"
    n_before = len(server.engine.requests_seen)
    socket.close()
    eventually(lambda: server.on_loop(lambda: server.engine.n_running) == 0)
    time.sleep(0.05)
    assert len(server.engine.requests_seen) == n_before, "nobody waits for the second"


def test_a_server_that_drains_finishes_the_response_and_closes() -> None:
    with toy_server(CHATML) as live, opened(live) as socket:
        live.engine.always(text_ids("slow"), Wait(0.2))
        socket.send(json.dumps({"type": "response.create", "model": "toy", "input": "hi"}))
        assert json.loads(socket.recv(10))["type"] == "response.created"
        live.services.draining = True
        assert events_of(socket)[-1]["type"] == "response.completed"
        assert close_code(socket) == 1012
        assert status_of(live) == (503, "draining")
