"""Responses that are made without their client: from queued to their end, across restarts, with events by number."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.api.responses_store import ResponsesStore
from imp_server.core import EngineFaulted
from imp_server.core.owner import Owner
from imp_server.engine.client.scripted import Fail, Wait, text_ids

from tests.api.live_server import LiveServer
from tests.api.resumable.streams import begin, code_of, endless, gated, post, until
from tests.live.toy_server import openai_sdk, toy_server

Json = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server() as live:
        live.engine.always(*text_ids("Hello"))
        yield live


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def asked(**more: Any) -> Json:
    return {"model": "toy", "input": "hi", "background": True, **more}


def begun(http: httpx.Client, **more: Any) -> str:
    reply = http.post("/v1/responses", json=asked(**more))
    assert reply.status_code == 200, reply.text
    assert reply.json()["status"] == "queued" and reply.json()["background"] is True
    name: str = reply.json()["id"]
    return name


def resource(http: httpx.Client, name: str) -> Json:
    reply = http.get(f"/v1/responses/{name}")
    assert reply.status_code == 200, reply.text
    found: Json = reply.json()
    return found


def ended(http: httpx.Client, name: str) -> Json:
    until(lambda: resource(http, name)["status"] not in ("queued", "in_progress"))
    return resource(http, name)


def events_of(data: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]


def test_from_queued_to_completed(server: LiveServer, http: httpx.Client) -> None:
    first, second = gated(server, "ab", "cd")
    name = begun(http, metadata={"a": "b"})
    assert resource(http, name)["status"] == "queued" and resource(http, name)["output"] == []
    server.on_loop(first.set)
    until(lambda: resource(http, name)["output"] and resource(http, name)["output"][0]["content"][0]["text"] == "ab")
    half = resource(http, name)
    assert half["status"] == "in_progress" and half["metadata"] == {"a": "b"} and half["store"] is True
    early = http.post("/v1/responses", json={"model": "toy", "input": "more", "previous_response_id": name})
    assert (early.status_code, early.json()["error"]["param"]) == (400, "previous_response_id")
    server.on_loop(second.set)
    whole = ended(http, name)
    assert whole["status"] == "completed" and whole["output"][0]["content"][0]["text"] == "abcd"
    assert whole["usage"]["output_tokens"] == 5 and whole["completed_at"] >= whole["created_at"]
    later = http.post("/v1/responses", json={"model": "toy", "input": "more", "previous_response_id": name}).json()
    assert later["status"] == "completed"
    items = http.get(f"/v1/responses/{later['id']}/input_items?order=asc").json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["hi", "abcd", "more"]
    assert http.get(f"/v1/responses/{name}/input_items").json()["data"][0]["content"][0]["text"] == "hi"


def test_one_that_waits_for_a_row_is_queued(http: httpx.Client) -> None:
    with toy_server() as live, httpx.Client(base_url=live.url, timeout=20) as own:
        live.engine._slots = asyncio.Semaphore(1)
        live.engine.play(*endless())
        first = begun(own, max_output_tokens=5000)
        until(lambda: resource(own, first)["status"] == "in_progress")
        second = begun(own)
        time.sleep(0.05)
        assert resource(own, second)["status"] == "queued"
        assert own.post(f"/v1/responses/{second}/cancel").json()["status"] == "cancelled"
        assert own.post(f"/v1/responses/{first}/cancel").json()["status"] == "cancelled"
        until(lambda: live.engine.n_running == 0)


def test_cancelling_again_changes_nothing(server: LiveServer, http: httpx.Client) -> None:
    server.engine.play(*endless())
    name = begun(http, max_output_tokens=5000)
    until(lambda: resource(http, name)["output"])
    first = http.post(f"/v1/responses/{name}/cancel").json()
    assert first["status"] == "cancelled" and first["output"][0]["status"] == "incomplete"
    assert until(lambda: server.engine.n_running == 0) < 0.25
    assert http.post(f"/v1/responses/{name}/cancel").json() == first == ended(http, name)
    until(lambda: len(server.services.sessions._running) == 0)
    assert http.post(f"/v1/responses/{name}/cancel").json() == first == resource(http, name)
    done = begun(http)
    whole = ended(http, done)
    assert http.post(f"/v1/responses/{done}/cancel").json() == whole and whole["status"] == "completed"
    assert http.post("/v1/responses/resp_none/cancel").status_code == 404


def test_deleting_one_that_is_made(server: LiveServer, http: httpx.Client) -> None:
    server.engine.play(*endless())
    name = begun(http, max_output_tokens=5000)
    until(lambda: server.engine.n_running == 1)
    assert http.delete(f"/v1/responses/{name}").status_code == 200
    assert until(lambda: server.engine.n_running == 0) < 0.25
    time.sleep(0.05)
    assert http.get(f"/v1/responses/{name}").status_code == 404
    assert http.delete(f"/v1/responses/{name}").status_code == 404


def test_what_is_refused(server: LiveServer, http: httpx.Client) -> None:
    no_store = http.post("/v1/responses", json=asked(store=False))
    assert (no_store.status_code, no_store.json()["error"]["param"]) == (400, "background")
    named = http.post("/v1/responses", json=asked(stream=True), headers={"x-conversation-id": "x"})
    assert (named.status_code, named.json()["error"]["param"]) == (400, "X-Conversation-Id")
    too_long = http.post("/v1/responses", json=asked(input="x" * 40000))
    assert (too_long.status_code, code_of(too_long)) == (400, "context_length_exceeded")
    with toy_server(settings={"responses.store": "off"}) as off:
        reply = httpx.post(f"{off.url}/v1/responses", json=asked())
        assert reply.status_code == 400 and "--responses-store" in reply.json()["error"]["message"]
    assert http.post("/v1/responses", json=asked(background=False)).json()["background"] is False


def test_a_failure_is_kept(server: LiveServer, http: httpx.Client) -> None:
    server.engine.play(*text_ids("so far"), Fail(EngineFaulted("step failed")))
    failed = ended(http, begun(http))
    assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
    assert failed["output"][0]["content"][0]["text"] == "so far"


def test_it_has_its_place_at_the_gate_and_its_deadline() -> None:
    settings = {"server.max_concurrent": 1, "server.request_timeout_s": 0.5}
    with toy_server(settings=settings) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        live.engine.play(*text_ids("so far"), Wait(60))
        name = begun(http)
        assert http.post("/v1/responses", json=asked()).status_code == 429
        whole = ended(http, name)
        assert whole["status"] == "incomplete" and whole["output"][0]["content"][0]["text"] == "so far"
        until(lambda: live.services.admission.gate.n_taken == 0)


def test_nobody_else_finds_it() -> None:
    with toy_server(settings={"server.api_key": ["alice-key", "bob-key"]}) as live:
        live.engine.play(*endless())
        alice, bob = (
            httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {key}"}, timeout=20)
            for key in ("alice-key", "bob-key")
        )
        with alice, bob:
            with alice.stream("POST", "/v1/responses", json=asked(stream=True, max_output_tokens=5000)) as stream:
                name = json.loads(next(line for line in stream.iter_lines() if line.startswith("data"))[6:])
            path = f"/v1/responses/{name['response']['id']}"
            assert [bob.get(path).status_code, bob.post(f"{path}/cancel").status_code] == [404, 404]
            assert [bob.delete(path).status_code, bob.get(f"{path}?stream=true").status_code] == [404, 404]
            assert alice.get(path).json()["status"] == "in_progress"
            assert alice.post("/v1/streams/lookup", json={"conversation_ids": [path[14:]]}).json() == []
            assert alice.get(f"/v1/stream{path[13:]}").status_code == 404
            assert alice.post(f"{path}/cancel").json()["status"] == "cancelled"


# --- events -----------------------------------------------------------------------------------------


def test_events_by_number(server: LiveServer, http: httpx.Client) -> None:
    sent = http.post("/v1/responses", json=asked(stream=True)).content
    events = events_of(sent)
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    path = f"/v1/responses/{events[0]['response']['id']}"
    assert http.get(path, params={"stream": "true"}).content == sent
    for after in range(len(events)):
        found = http.get(path, params={"stream": "true", "starting_after": after})
        assert found.headers["content-type"] == "text/event-stream"
        assert events_of(found.content) == events[after + 1 :]
    assert http.get(path).json() == events[-1]["response"]
    for wrong in ("-1", "1x", "", str(len(events))):
        reply = http.get(path, params={"stream": "true", "starting_after": wrong})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "starting_after")
    assert http.get(path, params={"starting_after": 1}).status_code == 400


def test_events_go_on_without_their_client(server: LiveServer, http: httpx.Client) -> None:
    first, second = gated(server, "ab", "cd")
    with http.stream("POST", "/v1/responses", json=asked(stream=True)) as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data"))
    name = json.loads(line[6:])["response"]["id"]
    server.on_loop(first.set)
    until(lambda: resource(http, name)["output"])
    with http.stream("GET", f"/v1/responses/{name}?stream=true&starting_after=1") as again:
        lines = (line for line in again.iter_lines() if line.startswith("data"))
        assert json.loads(next(lines)[6:])["type"] == "response.in_progress"
        server.on_loop(second.set)
        rest = [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
    assert "".join(event["delta"] for event in rest if event["type"].endswith("text.delta")) == "abcd"
    assert rest[-1]["type"] == "response.completed" and rest[-1]["response"] == resource(http, name)


def test_only_what_was_made_with_stream_has_events(server: LiveServer, http: httpx.Client) -> None:
    names = [begun(http), http.post("/v1/responses", json=asked(background=False)).json()["id"]]
    sent = http.post("/v1/responses", json=asked(background=False, stream=True)).content
    for name in (*names, events_of(sent)[0]["response"]["id"]):
        reply = http.get(f"/v1/responses/{name}?stream=true")
        assert (reply.status_code, code_of(reply)) == (400, "not_streamed")
    assert http.get("/v1/responses/resp_none?stream=true").status_code == 404
    until(lambda: len(server.services.sessions._running) == 0)


def test_events_are_forgotten_before_the_response() -> None:
    with toy_server(settings={"streams.replay_s": 0.2, "streams.ring_kib": 8}) as live:
        live.engine.play(*endless(100, 0.002))
        with httpx.Client(base_url=live.url, timeout=20) as http:
            sent = http.post("/v1/responses", json=asked(stream=True, max_output_tokens=100)).content
            path = f"/v1/responses/{events_of(sent)[0]['response']['id']}"
            early = http.get(path, params={"stream": "true", "starting_after": 0})
            assert (early.status_code, code_of(early)) == (400, "stream_offset_lost")
            until(lambda: code_of(http.get(path, params={"stream": "true"})) == "stream_offset_lost")
            assert http.get(path).json()["status"] == "incomplete"


def test_they_need_no_reader() -> None:
    with toy_server(settings={"streams.detached_s": 0.2}) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        live.engine.play(*endless(150, 0.01))
        assert ended(http, begun(http, max_output_tokens=150))["output"][0]["content"][0]["text"] == "x" * 150


def test_a_client_that_leaves_before_it_is_accepted(server: LiveServer) -> None:
    original, n_waiting = server.engine.submit, 0

    async def never(_request: Any) -> Any:
        nonlocal n_waiting
        n_waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            n_waiting -= 1

    engine: Any = server.engine
    engine.submit = never
    try:
        sock = begin(server, "unused", path="/v1/responses", **asked(messages=None, stream=False))
        until(lambda: n_waiting == 1)
        sock.close()
        assert until(lambda: n_waiting == 0) < 0.25
    finally:
        server.engine.submit = original  # type: ignore[method-assign]


# --- the end of the server --------------------------------------------------------------------------


def test_an_orderly_end_says_why(tmp_path: Any) -> None:
    settings = {"responses.store_path": str(tmp_path / "r.sqlite"), "server.drain_timeout_s": 0.1}
    with toy_server(settings=settings) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        live.engine.play(*endless())
        name = begun(http, max_output_tokens=5000)
        until(lambda: resource(http, name)["output"])
    with toy_server(settings=settings) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        failed = resource(http, name)
        assert failed["status"] == "failed" and failed["error"]["message"]
        assert [path.name for path in tmp_path.glob("*.run-*")] == []


A = Owner("a")


def made(path: str) -> ResponsesStore:
    return ResponsesStore(path, ttl_s=60, max_entries=100, max_bytes=10**6)


def queued(name: str) -> Json:
    return {"id": name, "object": "response", "status": "queued", "previous_response_id": None, "output": []}


def test_what_a_killed_server_was_making_has_failed(tmp_path: Any) -> None:
    path = str(tmp_path / "r.sqlite")
    code = (
        "import sys, time; from imp_server.api.responses_store import ResponsesStore\n"
        "store = ResponsesStore(sys.argv[1], ttl_s=60, max_entries=9, max_bytes=10**6)\n"
        "store.put('a', {'id': 'r1', 'status': 'queued', 'previous_response_id': None, 'output': []}, [])\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    import sys

    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        other = made(path)
        found = other.find(A, "r1")
        assert found is not None and found.resource["status"] == "queued" and not found.is_ours, "it is alive"
        process.kill()
    lost = other.resource(A, "r1")
    assert lost is not None and lost["status"] == "failed"
    assert lost["error"] == {"code": "server_error", "message": "the server ended before the response was done"}
    assert made(path).resource(A, "r1") == lost
    assert other.put(A, queued("r2"), [])
    assert len(list(tmp_path.glob("*.run-*"))) == 1, "only that of the living"
    other.close()
    assert not list(tmp_path.glob("*.run-*"))


def test_an_end_is_kept_once_and_never_brings_a_deleted_one_back() -> None:
    store = made(":memory:")
    assert store.put(A, queued("r1"), [{"id": "i1"}])
    assert not store.finish(Owner("b"), queued("r1"))
    done = queued("r1") | {"status": "completed", "output": [{"id": "o1", "type": "message"}]}
    assert store.finish(A, done) and store.resource(A, "r1") == done
    assert store.item(A, "o1") == {"id": "o1", "type": "message"}
    assert store.totals()[1] == len(json.dumps(done)) + len(json.dumps([{"id": "i1"}]))
    assert store.delete(A, "r1") and not store.finish(A, done) and store.resource(A, "r1") is None
    assert store.totals() == (0, 0)


def test_the_sdk_polls_and_streams(server: LiveServer) -> None:
    sdk = openai_sdk(server)
    response = sdk.responses.create(model="toy", input="hi", background=True)
    while response.status in ("queued", "in_progress"):
        response = sdk.responses.retrieve(response.id)
    assert response.output_text == "Hello"
    with sdk.responses.create(model="toy", input="hi", background=True, stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    again = sdk.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number)
    kinds = [event.type for event in again]
    assert kinds[0] == "response.queued" and kinds[-1] == "response.completed"
    assert post(server, "unrelated").status_code == 200
