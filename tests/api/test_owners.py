"""What a key has made is its own: others are told that it isn't there, and share no more than they may."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from imp_server.core import EngineFaulted
from imp_server.core.owner import NOBODY, acting_for, current_owner, owner_of
from imp_server.engine.client.script import Action, Fail, Wait, text_ids

from tests.api.live_server import LiveServer
from tests.api.test_streams import until
from tests.live.toy_server import toy_server as silent_server

KEYS = ("alice-key", "bob-key")


@contextmanager
def toy_server(**options: Any) -> Iterator[LiveServer]:
    with silent_server(**options) as live:
        live.engine.always(*text_ids("ok"))
        yield live


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(settings={"server.api_key": list(KEYS)}) as live:
        yield live


def client(server: LiveServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=20)


@pytest.fixture
def both(server: LiveServer) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    with client(server, KEYS[0]) as alice, client(server, KEYS[1]) as bob:
        yield alice, bob


def respond(http: httpx.Client, **more: Any) -> dict[str, Any]:
    reply = http.post("/v1/responses", json={"model": "toy", "input": "hi", "max_output_tokens": 4, **more})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


@contextmanager
def running(server: LiveServer, http: httpx.Client, path: str, body: dict[str, Any]) -> Iterator[httpx.Response]:
    """A stream that has begun and goes on for a while."""
    actions: list[Action] = [*text_ids("x"), Wait(0.02)]
    server.engine.play(*actions * 100)
    with http.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        next(lines)
        yield response
        del lines


def test_an_owner_is_a_digest_of_the_key_and_no_key() -> None:
    assert owner_of("alice-key") == owner_of("alice-key") != owner_of("bob-key")
    assert "alice" not in owner_of("alice-key") and len(owner_of("alice-key")) == 32

    async def other() -> str:
        return current_owner()

    async def run() -> None:
        with acting_for(owner_of("a")):
            assert await asyncio.create_task(other()) == owner_of("a")
        assert await other() == NOBODY

    asyncio.run(run())


def test_stored_responses(both: tuple[httpx.Client, httpx.Client]) -> None:
    alice, bob = both
    made = respond(alice)["id"]
    item = alice.get(f"/v1/responses/{made}").json()["output"][0]["id"]
    asked = {"model": "toy", "input": "", "previous_response_id": made}
    calls: list[Callable[[], httpx.Response]] = [
        lambda: bob.get(f"/v1/responses/{made}"),
        lambda: bob.get(f"/v1/responses/{made}/input_items"),
        lambda: bob.post(f"/v1/responses/{made}/cancel"),
        lambda: bob.delete(f"/v1/responses/{made}"),
        lambda: bob.post("/v1/responses", json={"model": "toy", "input": "go on", "previous_response_id": made}),
        lambda: bob.post("/v1/responses/input_tokens", json=asked),
        lambda: bob.post("/v1/responses", json={"model": "toy", "input": [{"type": "item_reference", "id": item}]}),
    ]
    for call in calls:
        reply = call()
        assert reply.status_code == 404, reply.text
    assert respond(alice, previous_response_id=made)["previous_response_id"] == made
    assert alice.delete(f"/v1/responses/{made}").status_code == 200


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"background": True}, {"background": True, "stream": True}])
def test_what_a_key_has_made_is_its_own_however_it_was_sent(
    both: tuple[httpx.Client, httpx.Client], more: dict[str, Any]
) -> None:
    """A stream ends when its request isn't being answered any more: it is kept for its owner all the same."""
    alice, bob = both
    conversation = alice.post("/v1/conversations", json={}).json()["id"]
    asked = {"model": "toy", "input": "hi", "max_output_tokens": 4, "conversation": conversation, **more}
    reply = alice.post("/v1/responses", json=asked)
    assert reply.status_code == 200, reply.text
    name = json.loads(reply.text.partition("data: ")[2].splitlines()[0])["response"]["id"] if "stream" in more else ""
    path = f"/v1/responses/{name or reply.json()['id']}"
    until(lambda: alice.get(path).json().get("status") == "completed", 10)
    items = f"/v1/conversations/{conversation}/items"
    until(lambda: len(alice.get(items).json()["data"]) == 2, 10)
    assert bob.get(path).status_code == bob.get(items).status_code == 404


def test_live_requests(server: LiveServer, both: tuple[httpx.Client, httpx.Client]) -> None:
    alice, bob = both
    body = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
    with running(server, alice, "/v1/chat/completions", body) as stream:
        name = stream.headers["x-request-id"]
        reply = bob.post(f"/v1/requests/{name}/end_thinking")
        assert reply.status_code == 404 and reply.json()["error"]["code"] == "request_not_found"
        control = {"id": name, "action": "reasoning_end"}
        told = bob.post("/v1/chat/completions/control", json=control).json()
        assert told == {"success": False, "message": "no reply with this id is being made"}
        assert "no reply with this id" not in alice.post("/v1/chat/completions/control", json=control).text
        assert alice.post(f"/v1/requests/{name}/end_thinking").status_code != 404


def test_a_response_that_is_being_made(server: LiveServer, both: tuple[httpx.Client, httpx.Client]) -> None:
    alice, bob = both
    with running(server, alice, "/v1/responses", {"model": "toy", "input": "hi"}) as stream:
        name = stream.headers["x-request-id"]
        assert alice.get(f"/v1/responses/{name}").json()["status"] == "in_progress"
        assert bob.get(f"/v1/responses/{name}").status_code == 404
        assert bob.post(f"/v1/responses/{name}/cancel").status_code == 404
        assert alice.get(f"/v1/responses/{name}").json()["status"] == "in_progress"
        assert alice.post(f"/v1/responses/{name}/cancel").json()["status"] == "cancelled"


def test_slots_show_others_as_busy_and_no_more(server: LiveServer, both: tuple[httpx.Client, httpx.Client]) -> None:
    alice, bob = both
    body = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
    with running(server, alice, "/v1/chat/completions", body):
        seen = {}
        for name, http in (("alice", alice), ("bob", bob)):
            (seen[name],) = [slot for slot in http.get("/slots").json() if slot["is_processing"]]
    assert {"id_task", "n_prompt_tokens", "next_token"} <= set(seen["alice"])
    assert set(seen["bob"]) == {"id", "n_ctx", "speculative", "is_processing"}


def test_sessions_of_one_name_are_two(server: LiveServer, both: tuple[httpx.Client, httpx.Client]) -> None:
    names = []
    for http in both:
        server.engine.sessions_closed.clear()
        assert http.post("/v1/sessions/work/close").status_code == 200
        names += server.engine.sessions_closed
        respond(http, session_id="work")
        assert server.engine.requests_seen[-1].cache.session_id == names[-1]
    assert len(set(names)) == 2 and all(name.endswith("/work") for name in names)
    assert not any("key" in name for name in names)


def test_an_answer_sent_back_is_found_by_its_owner_alone(
    server: LiveServer, both: tuple[httpx.Client, httpx.Client]
) -> None:
    """The toy model's tokenizer would never make the ids that were served: they tell whose transcript was used."""
    alice, bob = both
    hello = [{"role": "user", "content": "an unheard-of question"}]
    served = [ord("o"), ord("k"), 195, 188]
    server.engine.play(*served)
    first = alice.post("/v1/chat/completions", json={"model": "toy", "messages": hello, "max_tokens": 4})
    answer = first.json()["choices"][0]["message"]["content"]
    assert answer == "okü"
    side: Any = server.services.models.find("toy").text
    text = side.model.transcripts
    assert text is not None
    found: list[bool] = []
    original = text.find

    def find(*args: Any) -> Any:
        entry = original(*args)
        found.append(entry is not None)
        return entry

    text.find = find
    try:
        again = [*hello, {"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
        for http, salt in ((bob, None), (alice, "pepper"), (alice, None)):
            body = {"model": "toy", "messages": again, "max_tokens": 1, "cache_salt": salt}
            assert http.post("/v1/chat/completions", json=body).status_code == 200
            assert http.post("/v1/chat/completions/input_tokens", json=body).status_code == 200
    finally:
        text.find = original
    assert found == [False, False, False, False, True, True]


@pytest.mark.parametrize(("isolate", "n_scopes"), [(False, 2), (True, 4)])
def test_scopes_of_the_cache(isolate: bool, n_scopes: int) -> None:
    """By salt always, by key where the knob says so; without either all share."""
    settings = {"server.api_key": list(KEYS), "prefix_cache.isolate_keys": isolate}
    paths: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/v1/completions": {"prompt": "hi"},
        "/completion": {"prompt": "hi"},
        "/v1/responses": {"input": "hi"},
        "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    }
    with toy_server(settings=settings) as live:
        for path, body in paths.items():
            scopes = []
            for key in KEYS:
                for salt in ("", "pepper"):
                    with client(live, key) as http:
                        reply = http.post(path, json=body | {"model": "toy"} | ({"cache_salt": salt} if salt else {}))
                    assert reply.status_code == 200, reply.text
                    scopes.append(live.engine.requests_seen[-1].cache.scope)
            assert len(set(scopes)) == n_scopes, path
            assert (scopes[0] == "") == (not isolate) and "pepper" not in "".join(scopes)


def test_a_server_without_keys_has_one_owner() -> None:
    with toy_server() as live, httpx.Client(base_url=live.url, timeout=20) as http:
        made = respond(http, session_id="work")["id"]
        assert live.engine.requests_seen[-1].cache.session_id == "work"
        other = httpx.get(f"{live.url}/v1/responses/{made}", headers={"authorization": "Bearer anything"})
        assert other.status_code == 200


# --- the store never holds anybody up ---------------------------------------------------------------


@contextmanager
def hanging(live: LiveServer) -> Iterator[threading.Event]:
    """The disk of the store hangs until the event is set."""
    store = live.services.shelf.store
    assert store is not None
    door, original = threading.Event(), store.put

    def put(*args: Any) -> bool:
        door.wait(30)
        return original(*args)

    held: Any = store
    held.put = put
    try:
        yield door
    finally:
        door.set()
        store.put = original  # type: ignore[method-assign]


def final_of(http: httpx.Client, **more: Any) -> dict[str, Any]:
    """The last event's resource."""
    body = {"model": "toy", "input": "hi", "max_output_tokens": 4, "stream": True, **more}
    with http.stream("POST", "/v1/responses", json=body) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: {")]
    resource: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))["response"]
    return resource


def test_a_hanging_disk_costs_the_end_of_a_reply_a_second_and_others_nothing() -> None:
    with toy_server() as live, httpx.Client(base_url=live.url, timeout=20) as http, hanging(live):
        begun = time.monotonic()
        streamed = final_of(http)
        took = time.monotonic() - begun
        assert 0.9 < took < 1.9 and streamed["store"] is False and streamed["status"] == "completed"
        begun = time.monotonic()
        for path, body in (("/v1/responses", {"input": "hi", "store": False}), ("/v1/completions", {"prompt": "hi"})):
            assert http.post(path, json=body | {"model": "toy", "max_tokens": 2}).status_code in (200, 400)
        assert http.get("/metrics").status_code == 200
        assert time.monotonic() - begun < 0.8
        assert respond(http)["store"] is False


def test_what_could_not_be_kept_is_told(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("no folder")
    settings = {"responses.store_path": str(tmp_path / "file" / "responses.sqlite")}
    with toy_server(settings=settings) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        whole, streamed = respond(http), final_of(http)
        assert whole["store"] is streamed["store"] is False
        assert http.get(f"/v1/responses/{whole['id']}").status_code == 404
        live.engine.play(*text_ids("ab"), Fail(EngineFaulted("a step failed")))
        failed = final_of(http)
        assert failed["status"] == "failed" and failed["store"] is False


def test_previous_response_id_works_as_soon_as_the_reply_ends(tmp_path: Any) -> None:
    settings = {"responses.store_path": str(tmp_path / "responses.sqlite")}
    with toy_server(settings=settings) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        name = None
        for turn in range(20):
            reply = final_of(http, previous_response_id=name) if turn % 2 else respond(http, previous_response_id=name)
            assert reply["store"] is True and reply["previous_response_id"] == name
            name = reply["id"]
        live.engine.play(*text_ids("ab"), Fail(EngineFaulted("a step failed")))
        failed = final_of(http)
        assert failed["status"] == "failed" and failed["store"] is True
        assert http.get(f"/v1/responses/{failed['id']}").json() == failed
        assert respond(http, store=False)["store"] is False
