"""Conversations over HTTP, and what responses read of them and add to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Fail, text_ids

from tests.api.live_server import LiveServer
from tests.api.resumable.streams import code_of, endless, gated, until
from tests.live.toy_server import openai_sdk, prompt_of, toy_server

Json = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server() as live:
        live.engine.always(*text_ids("Aye"))
        yield live


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def begun(http: httpx.Client, **more: Any) -> str:
    reply = http.post("/v1/conversations", json=more)
    assert reply.status_code == 200, reply.text
    name: str = reply.json()["id"]
    return name


def items_of(http: httpx.Client, name: str, **query: Any) -> list[Json]:
    reply = http.get(f"/v1/conversations/{name}/items", params={"order": "asc", "limit": 100, **query})
    assert reply.status_code == 200, reply.text
    data: list[Json] = reply.json()["data"]
    return data


def texts(items: list[Json]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


def respond(http: httpx.Client, conversation: Any, text: str = "hi", **more: Any) -> httpx.Response:
    return http.post("/v1/responses", json={"model": "toy", "input": text, "conversation": conversation, **more})


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def test_its_life(http: httpx.Client) -> None:
    made = http.post("/v1/conversations", json={"metadata": {"a": "b"}, "items": [user("one")]}).json()
    assert made["object"] == "conversation" and made["metadata"] == {"a": "b"} and made["created_at"] > 1.7e9
    path = f"/v1/conversations/{made['id']}"
    assert http.get(path).json() == made
    changed = http.post(path, json={"metadata": {"c": "d"}}).json()
    assert changed == made | {"metadata": {"c": "d"}} == http.get(path).json()
    (one,) = items_of(http, made["id"])
    assert one["type"] == "message" and one["status"] == "completed" and one["id"].startswith("msg_")
    assert one["content"] == [{"type": "input_text", "text": "one"}]
    assert http.get(f"{path}/items/{one['id']}").json() == one
    assert http.delete(f"{path}/items/{one['id']}").json() == changed
    assert items_of(http, made["id"]) == []
    assert http.delete(path).json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    for method, where, body in (
        ("GET", path, None),
        ("POST", path, {"metadata": {}}),
        ("DELETE", path, None),
        ("GET", f"{path}/items", None),
        ("POST", f"{path}/items", {"items": [user("x")]}),
        ("GET", f"{path}/items/x", None),
        ("DELETE", f"{path}/items/x", None),
    ):
        reply = http.request(method, where, json=body)
        assert (reply.status_code, code_of(reply)) == (404, "conversation_not_found")
    assert http.post("/v1/conversations", json={}).status_code == 200


def test_pages(http: httpx.Client) -> None:
    name = begun(http)
    path = f"/v1/conversations/{name}/items"
    added = http.post(path, json={"items": [user(str(i)) for i in range(20)]}).json()
    assert [len(added["data"]), added["has_more"]] == [20, False]
    assert (added["first_id"], added["last_id"]) == (added["data"][0]["id"], added["data"][-1]["id"])
    http.post(path, json={"items": [user(str(i)) for i in range(20, 25)]})
    first = http.get(path).json()
    assert texts(first["data"]) == [str(i) for i in range(24, 4, -1)] and first["has_more"] is True
    last = http.get(path, params={"after": first["last_id"]}).json()
    assert texts(last["data"]) == ["4", "3", "2", "1", "0"] and last["has_more"] is False
    assert texts(items_of(http, name, limit=3, after=added["first_id"])) == ["1", "2", "3"]
    for query in ({"limit": 0}, {"limit": 101}, {"order": "up"}):
        assert http.get(path, params=query).status_code == 400
    assert http.post(path, json={"items": [user("x")] * 21}).status_code == 400
    assert http.post(path, json={"items": []}).status_code == 400
    assert http.get(f"{path}/msg_none").json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_object", [False, True])
def test_a_response_goes_on_and_adds_its_turn(
    server: LiveServer, http: httpx.Client, is_streamed: bool, is_object: bool
) -> None:
    name = begun(http, items=[user("Call the ship Ada."), {"role": "assistant", "content": "Done."}])
    reply = respond(http, {"id": name} if is_object else name, "What is her name?", stream=is_streamed)
    assert reply.status_code == 200, reply.text
    final = json.loads(reply.text.split("data: ")[-2])["response"] if is_streamed else reply.json()
    assert final["conversation"] == {"id": name} and final["previous_response_id"] is None
    assert http.get(f"/v1/responses/{final['id']}").json() == final
    sent = prompt_of(server)
    assert sent.index("Call the ship Ada.") < sent.index("Done.") < sent.index("What is her name?")
    items = items_of(http, name)
    assert texts(items) == ["Call the ship Ada.", "Done.", "What is her name?", "Aye"]
    assert items[-1] == final["output"][0] and [item["role"] for item in items[2:]] == ["user", "assistant"]
    respond(http, name, "And again?")
    assert "Aye" in prompt_of(server) and len(items_of(http, name)) == 6
    by_id = http.get(f"/v1/responses/{final['id']}/input_items").json()["data"]
    assert texts(by_id) == ["What is her name?"]


def test_a_response_that_is_not_stored_adds_its_turn_too(http: httpx.Client) -> None:
    name = begun(http)
    made = respond(http, name, store=False).json()
    assert made["store"] is False and http.get(f"/v1/responses/{made['id']}").status_code == 404
    assert texts(items_of(http, name)) == ["hi", "Aye"]


def test_tokens_are_counted_with_it(http: httpx.Client) -> None:
    name = begun(http, items=[user("some words before")])
    counts = [
        http.post("/v1/responses/input_tokens", json={"model": "toy", "input": "hi", **more}).json()["input_tokens"]
        for more in ({}, {"conversation": name})
    ]
    assert counts[1] > counts[0] + len("some words before")


def test_it_is_not_named_beside_a_response(http: httpx.Client) -> None:
    name = begun(http)
    made = respond(http, name).json()
    both = respond(http, name, previous_response_id=made["id"])
    assert (both.status_code, both.json()["error"]["param"]) == (400, "conversation")
    alone = http.post("/v1/responses", json={"model": "toy", "input": "x", "previous_response_id": made["id"]})
    assert (alone.status_code, code_of(alone)) == (400, "invalid_history") and name in alone.text
    unknown = respond(http, "conv_none")
    assert (unknown.status_code, code_of(unknown)) == (404, "conversation_not_found")
    assert unknown.json()["error"]["param"] == "conversation"
    assert respond(http, {"name": "x"}).status_code == 400 and respond(http, "").status_code == 400
    assert respond(http, None).status_code == 200


def test_only_an_end_adds_anything(server: LiveServer, http: httpx.Client) -> None:
    name = begun(http)
    server.engine.play(*text_ids("so far"), Fail(EngineFaulted("step failed")))
    assert respond(http, name).status_code == 500
    server.engine.play(*endless())
    with http.stream("POST", "/v1/responses", json=_asked(name, stream=True, max_output_tokens=5000)) as stream:
        next(stream.iter_lines())
        assert items_of(http, name) == []
    until(lambda: server.engine.n_running == 0)
    assert respond(http, name, "x" * 40000).status_code == 400
    server.engine.play(*endless())
    made = respond(http, name, background=True, max_output_tokens=5000).json()["id"]
    until(lambda: http.get(f"/v1/responses/{made}").json()["output"])
    assert items_of(http, name) == []
    assert http.post(f"/v1/responses/{made}/cancel").json()["status"] == "cancelled"
    until(lambda: len(server.services.sessions._running) == 0)
    assert items_of(http, name) == []
    cut = respond(http, name, max_output_tokens=2).json()
    assert cut["status"] == "incomplete" and texts(items_of(http, name)) == ["hi", "Ay"]


def _asked(name: str, **more: Any) -> Json:
    return {"model": "toy", "input": "hi", "conversation": name, **more}


def test_turns_at_the_same_time_stay_whole(server: LiveServer, http: httpx.Client) -> None:
    name = begun(http)
    gates = [gated(server, text)[0] for text in ("first", "second", "third")]
    made = [respond(http, name, f"q{i}", background=True).json()["id"] for i in range(3)]
    for i in (1, 2, 0):
        server.on_loop(gates[i].set)
        until(lambda: http.get(f"/v1/responses/{made[i]}").json()["status"] == "completed")  # noqa: B023
    assert texts(items_of(http, name)) == ["q1", "second", "q2", "third", "q0", "first"]
    gone = begun(http)
    (gate,) = gated(server, "late")
    late = respond(http, gone, background=True).json()["id"]
    http.delete(f"/v1/conversations/{gone}")
    server.on_loop(gate.set)
    until(lambda: http.get(f"/v1/responses/{late}").json()["status"] == "completed")
    assert http.get(f"/v1/conversations/{gone}").status_code == 404


def test_an_item_is_named_by_its_id_elsewhere(server: LiveServer, http: httpx.Client) -> None:
    name = begun(http, items=[user("remember the harbour")])
    (item,) = items_of(http, name)
    reference = {"type": "item_reference", "id": item["id"]}
    assert http.post("/v1/responses", json={"model": "toy", "input": [reference]}).status_code == 200
    assert "remember the harbour" in prompt_of(server)
    other = begun(http, items=[reference, reference])
    first, second = items_of(http, other)
    assert first == item and second["id"] != item["id"] and second["content"] == item["content"]


def test_it_is_its_keys_own() -> None:
    with toy_server(settings={"server.api_key": ["alice-key", "bob-key"]}) as live:
        alice, bob = (
            httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {key}"}, timeout=20)
            for key in ("alice-key", "bob-key")
        )
        with alice, bob:
            name = begun(alice, items=[user("mine")])
            path = f"/v1/conversations/{name}"
            item = items_of(alice, name)[0]["id"]
            asked = {"model": "toy", "input": [{"type": "item_reference", "id": item}]}
            for reply in (
                bob.get(path),
                bob.post(path, json={"metadata": {}}),
                bob.delete(path),
                bob.get(f"{path}/items"),
                bob.post(f"{path}/items", json={"items": [user("x")]}),
                bob.get(f"{path}/items/{item}"),
                bob.delete(f"{path}/items/{item}"),
                respond(bob, name),
                bob.post("/v1/responses", json=asked),
            ):
                assert reply.status_code == 404, reply.text
            assert texts(items_of(alice, name)) == ["mine"]


@pytest.mark.parametrize("way", ["conversation", "previous_response_id", "item_reference"])
def test_what_came_before_counts_for_the_memory_of_bodies(way: str) -> None:
    """Each turn is small, all of them together are more than bodies may take."""
    turn = {
        "role": "user",
        "content": [{"type": "input_text", "text": ""}] * 1500 + [{"type": "input_text", "text": "x"}],
    }
    with toy_server(settings={"server.max_body_memory_mib": 1}) as live, httpx.Client(base_url=live.url) as http:
        live.engine.always(*text_ids("Aye"))
        before: Json = {"conversation": begun(http)} if way == "conversation" else {}
        named: list[Json] = []
        for _ in range(3):
            reply = http.post("/v1/responses", json={"model": "toy", "input": [*named, turn], **before}, timeout=20)
            if reply.status_code != 200:
                break
            if way == "item_reference":
                named.append(
                    {"type": "item_reference", "id": f"msg_{reply.json()['id'].removeprefix('resp_')}_in{len(named)}"}
                )
            elif way == "previous_response_id":
                before = {way: reply.json()["id"]}
        assert reply.status_code == 413 and "names of earlier ones" in reply.json()["error"]["message"]
        assert live.services.admission.bodies.n_taken == 0
        assert http.post("/v1/responses", json={"model": "toy", "input": "hi"}).status_code == 200


def test_a_server_that_keeps_nothing_says_so() -> None:
    with toy_server(settings={"responses.store": "off"}) as live:
        for path, body in (("/v1/conversations", {}), ("/v1/responses", _asked("conv_1"))):
            reply = httpx.post(live.url + path, json=body)
            assert reply.status_code == 400 and "--responses-store" in reply.json()["error"]["message"]


def test_the_sdk(server: LiveServer) -> None:
    sdk = openai_sdk(server)
    conversation = sdk.conversations.create(items=[{"type": "message", "role": "user", "content": "one"}])
    for i in range(24):
        sdk.conversations.items.create(conversation.id, items=[{"role": "user", "content": str(i)}])
    listed: list[Any] = list(sdk.conversations.items.list(conversation.id, order="asc", limit=7))
    assert len(listed) == 25 and listed[-1].content[0].text == "23"
    response = sdk.responses.create(model="toy", input="hi", conversation=conversation.id)
    assert response.conversation is not None and response.conversation.id == conversation.id
    said = str(response.output[0].id)
    assert sdk.conversations.items.retrieve(said, conversation_id=conversation.id)
    assert sdk.conversations.items.delete(said, conversation_id=conversation.id).id == conversation.id
    assert sdk.conversations.update(conversation.id, metadata={"k": "v"}).metadata == {"k": "v"}
    assert sdk.conversations.delete(conversation.id).deleted is True


def test_the_agents_session(server: LiveServer) -> None:
    agents = pytest.importorskip("agents")
    import openai

    async def run() -> list[Any]:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        session = agents.OpenAIConversationsSession(openai_client=client)
        model = agents.OpenAIResponsesModel("toy", client)
        agent = agents.Agent(name="mate", instructions="Answer.", model=model)
        config = agents.RunConfig(tracing_disabled=True)
        for text in ("Call the ship Ada.", "What is her name?"):
            result = await agents.Runner.run(agent, text, session=session, run_config=config)
            assert result.final_output == "Aye"
        items = await session.get_items()
        assert texts(items) == ["Call the ship Ada.", "Aye", "What is her name?", "Aye"]
        assert texts(await session.get_items(limit=3)) == ["Aye", "What is her name?", "Aye"]
        popped = await session.pop_item()
        assert popped is not None and texts([popped]) == ["Aye"]
        await session.add_items([{"role": "user", "content": str(i)} for i in range(45)])
        assert len(await session.get_items()) == 48
        name = session.session_id
        await session.clear_session()
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(name)
        found: list[Any] = items
        return found

    asyncio.run(run())
    assert "Call the ship Ada." in prompt_of(server) and "Aye" in prompt_of(server)
