"""/v1/responses on a live server: the official SDK, the store, cancelling, errors, replays."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Fail, ScriptGate, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, call_text, openai_sdk, prompt_of, toy_server

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


@pytest.fixture
def sdk(server: LiveServer) -> openai.OpenAI:
    return openai_sdk(server)


def post(server: LiveServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/responses", json={"model": "toy", "input": "hi"} | body, timeout=20)


def test_create_is_a_full_resource(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("Hello wörld"))
    response = sdk.responses.create(model="toy", input="hi", instructions="be brief", metadata={"a": "b"})
    assert response.output_text == "Hello wörld" and response.status == "completed"
    assert response.id.startswith("resp_") and response.model == "toy" and response.metadata == {"a": "b"}
    assert response.usage and response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_stream_helper_reaches_its_final_response(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("Hello wörld"))
    with sdk.responses.stream(model="toy", input="hi") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == stream.get_final_response().output_text == "Hello wörld"


def test_parse_gives_the_model(server: LiveServer, sdk: openai.OpenAI) -> None:
    class Answer(pydantic.BaseModel):
        number: int

    server.engine.play(text_ids('{"number": 4}'))
    with sdk.responses.stream(model="toy", input="2+2?", text_format=Answer) as stream:
        parsed = stream.get_final_response().output_parsed
    assert parsed == Answer(number=4)


def test_tools_and_the_replay_of_the_answer(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("<think>need it</think>Let me see." + call_text("weather", city="Köln")))
    first = sdk.responses.create(
        model="toy", input="Weather?", tools=[WEATHER], include=["reasoning.encrypted_content"]
    )
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call: Any = first.output[-1]
    assert json.loads(call.arguments) == {"city": "Köln"} and call.name == "weather"
    replay: list[Any] = [item.model_dump(exclude_none=True) for item in first.output]
    server.engine.play(text_ids("Sunny."))
    second = sdk.responses.create(
        model="toy",
        input=[{"role": "user", "content": "Weather?"}, *replay,
               {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}],
        tools=[WEATHER],
    )  # fmt: skip
    assert second.output_text == "Sunny."
    assert "<think>need it</think>Let me see.<tool_call>" in prompt_of(server) and "sun<|im_end|>" in prompt_of(server)


def test_previous_response_id_equals_a_stateless_resend(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("One."))
    first = sdk.responses.create(model="toy", input="a", instructions="not inherited")
    server.engine.play(text_ids("Two."))
    second = sdk.responses.create(model="toy", input="b", previous_response_id=first.id)
    chained = prompt_of(server)
    server.engine.play(text_ids("Two."))
    sdk.responses.create(
        model="toy",
        input=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "b"},
        ],
    )
    assert prompt_of(server) == chained and "not inherited" not in chained
    assert second.previous_response_id == first.id


def test_a_streamed_response_is_stored_when_its_end_arrives(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("One."))
    stream = sdk.responses.create(model="toy", input="a", stream=True)
    for event in stream:
        if event.type == "response.completed":
            server.engine.play(text_ids("Two."))
            second = sdk.responses.create(model="toy", input="b", previous_response_id=event.response.id)
            assert second.output_text == "Two."
            assert sdk.responses.retrieve(event.response.id).output_text == "One."
            break
    else:
        pytest.fail("no response.completed")


def test_retrieve_input_items_delete(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("One."))
    first = sdk.responses.create(model="toy", input="a")
    assert sdk.responses.retrieve(first.id) == first
    server.engine.play(text_ids("Two."))
    second = sdk.responses.create(model="toy", input="b", previous_response_id=first.id)
    items = sdk.responses.input_items.list(second.id, order="asc", limit=2)
    assert items.has_more and [item.role for item in items.data] == ["user", "assistant"]  # type: ignore[union-attr]
    assert [item.id for item in items] and len(list(items)) == 3
    assert sdk.responses.cancel(first.id) == first
    sdk.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.retrieve(first.id)
    assert caught.value.code == "response_not_found" and first.id in caught.value.message
    assert len(list(sdk.responses.input_items.list(second.id))) == 3


def test_unknown_previous_response_is_404_and_named(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.create(model="toy", input="b", previous_response_id="resp_gone")
    error = caught.value
    assert (error.code, error.param) == ("previous_response_not_found", "previous_response_id")
    assert "resp_gone" in error.message


def test_store_false_is_not_stored(server: LiveServer, sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(model="toy", input="a", store=False)
    assert response.model_extra and response.model_extra["store"] is False
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(response.id)


def test_item_references_are_resolved(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("One."))
    first = sdk.responses.create(model="toy", input="a")
    item: Any = {"type": "item_reference", "id": first.output[0].id}
    sdk.responses.create(model="toy", input=[{"role": "user", "content": "a"}, item, {"role": "user", "content": "b"}])
    assert "assistant\nOne.<|im_end|>" in prompt_of(server)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model="toy", input=[{"type": "item_reference", "id": "msg_nobody"}])


def test_input_tokens_equal_those_of_the_call(server: LiveServer, sdk: openai.OpenAI) -> None:
    body: Any = {"model": "toy", "input": "count me", "tools": [WEATHER]}
    counted = sdk.responses.input_tokens.count(**body).input_tokens
    usage = sdk.responses.create(**body).usage
    assert usage and usage.input_tokens == counted
    assert sdk.responses.input_tokens.count(**(body | {"tools": []})).input_tokens < counted


def test_max_output_tokens_ends_in_incomplete(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("long answer"))
    response = sdk.responses.create(model="toy", input="a", max_output_tokens=4)
    assert (response.status, response.output_text) == ("incomplete", "long")
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"


def test_logprobs_cover_the_text(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("wö"))
    response = sdk.responses.create(model="toy", input="a", top_logprobs=2, include=["message.output_text.logprobs"])
    said: Any = response.output[0]
    part = said.content[0]
    assert bytes(b for entry in part.logprobs for b in entry.bytes) == "wö".encode()


def test_media_is_refused_by_name_also_in_tool_outputs(server: LiveServer) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    for item, path in (
        ({"role": "user", "content": [image]}, "input[0].content[0]"),
        ({"type": "function_call_output", "call_id": "c", "output": [image]}, "input[0].output[0]"),
    ):
        error = post(server, input=[item]).json()["error"]
        assert error["code"] == "vision_unavailable" and error["param"] == path


def test_responses_have_no_list(server: LiveServer) -> None:
    refused = httpx.get(f"{server.url}/v1/responses")
    assert refused.status_code == 405 and "POST" in refused.headers["allow"] and refused.json()["error"]["message"]


def test_an_item_with_an_empty_id_gets_one(server: LiveServer) -> None:
    item = {"type": "message", "role": "user", "content": "hi", "id": "", "status": "", "phase": ""}
    server.engine.play(text_ids("short"))
    reply = httpx.post(f"{server.url}/v1/responses/compact", json={"model": "toy", "input": [item]})
    assert reply.status_code == 200 and reply.json()["output"][0]["id"].startswith("msg_")
    kept = post(server, input=[item]).json()["id"]
    assert httpx.get(f"{server.url}/v1/responses/{kept}/input_items").json()["data"][0]["id"].startswith("msg_")


def test_a_compacted_conversation_goes_on(server: LiveServer, sdk: openai.OpenAI) -> None:
    turns: Any = [
        {"role": "user", "content": "Call her Ada."},
        {"role": "assistant", "content": "Very well."},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "fog"},
        {"role": "user", "content": "And now?"},
    ]
    server.engine.play(text_ids("The ship is Ada; fog."))
    # Not strict: the type of `output` knows no user messages.
    lenient = openai.OpenAI(base_url=f"{server.url}/v1", api_key="k")
    compacted = lenient.responses.compact(model="toy", input=turns, instructions="Be terse.")
    assert compacted.object == "response.compaction" and compacted.usage.output_tokens > 0
    asked = prompt_of(server)
    assert "Be terse." in asked and "fog" in asked and "Summarise the conversation" in asked
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    sent: Any = [item.model_dump(warnings=False) for item in compacted.output]
    server.engine.play(text_ids("ok"))
    sdk.responses.create(model="toy", input=[*sent, {"role": "user", "content": "Go on."}])
    again = prompt_of(server)
    assert "Summary of the conversation so far:\n\nThe ship is Ada; fog." in again
    assert "Call her Ada." in again and "And now?" in again and "Very well." not in again


def test_compaction_reads_stored_turns_and_what_the_context_holds(server: LiveServer, sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(model="toy", input="Call her Ada.")
    body = {"model": "toy", "previous_response_id": first.id}
    url = f"{server.url}/v1/responses/compact"
    assert httpx.post(url, json=body).json()["output"][0]["content"][0]["text"] == "Call her Ada."
    long = [{"role": role, "content": f"{i} " + "x" * 9000} for i in range(4) for role in ("user", "assistant")]
    reply = httpx.post(url, json={"model": "toy", "input": long})
    assert reply.status_code == 200 and len(reply.json()["output"]) == 5
    assert "user\n0 x" not in prompt_of(server) and "assistant\n3 x" in prompt_of(server)


def test_a_compaction_that_cant_be_read_is_refused(server: LiveServer) -> None:
    sealed = {"type": "compaction", "encrypted_content": "gAAAA"}
    foreign = post(server, input=[sealed, {"role": "user", "content": "a"}])
    assert foreign.status_code == 400
    error = foreign.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_history", "input[0].encrypted_content")
    empty = httpx.post(f"{server.url}/v1/responses/compact", json={"model": "toy"})
    assert empty.status_code == 400 and empty.json()["error"]["param"] == "input"


def test_truncation_auto_drops_old_turns(server: LiveServer) -> None:
    turns = [{"role": role, "content": f"{i} " + "x" * 9000} for i in range(4) for role in ("user", "assistant")]
    long = [*turns, {"role": "user", "content": "last"}]
    refused = post(server, input=long)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == "input"
    assert post(server, input=long, truncation="auto").status_code == 200
    assert "last" in prompt_of(server) and "user\n0 x" not in prompt_of(server)


def test_failure_mid_stream_raises_in_the_sdk_and_is_kept_as_failed(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("par"), Fail(EngineFaulted("one step failed")))
    seen: list[str] = []
    with pytest.raises(openai.APIError, match="one step failed"):
        seen.extend(event.type for event in sdk.responses.create(model="toy", input="a", stream=True))
    assert "response.completed" not in seen
    server.engine.play(Fail(EngineFaulted("one step failed")))
    body = post(server, stream=True).text
    assert '"status":"failed"' in body
    assert body.index("event: error") < body.index("event: response.failed") < body.index("data: [DONE]")
    failed = json.loads(body.split("event: response.failed\ndata: ")[1].split("\n")[0])["response"]
    assert httpx.get(f"{server.url}/v1/responses/{failed['id']}").json() == failed
    items = httpx.get(f"{server.url}/v1/responses/{failed['id']}/input_items").json()["data"]
    assert [item["type"] for item in items] == ["message"]


def test_a_failure_of_a_response_that_was_not_to_be_stored_is_not(server: LiveServer) -> None:
    server.engine.play(Fail(EngineFaulted("one step failed")))
    body = post(server, stream=True, store=False).text
    failed = json.loads(body.split("event: response.failed\ndata: ")[1].split("\n")[0])["response"]
    assert httpx.get(f"{server.url}/v1/responses/{failed['id']}").status_code == 404


def test_an_unknown_tool_type_never_fails_a_request(server: LiveServer) -> None:
    tools = [{"type": t} for t in ("web_search", "file_search", "mcp", "code_interpreter", "tomorrow")]
    assert post(server, tools=[*tools, WEATHER], tool_choice="auto").status_code == 200


def test_opening_events_come_before_the_first_token_and_a_live_response_can_be_cancelled(server: LiveServer) -> None:
    gate = server.on_loop(asyncio.Event)
    server.engine.play(text_ids("par"), ScriptGate(gate))
    with httpx.stream(
        "POST", f"{server.url}/v1/responses", json={"model": "toy", "input": "hi", "stream": True}
    ) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        created = json.loads(next(lines)[6:])
        assert created["type"] == "response.created"
        address = f"{server.url}/v1/responses/{created['response']['id']}"
        live = httpx.get(address).json()
        assert live["status"] == "in_progress"
        cancelled = httpx.post(f"{address}/cancel").json()
        assert cancelled["status"] == "cancelled" and server.engine.n_running == 0
        rest = [line[6:] for line in lines]
    assert rest[-1] == "[DONE]" and json.loads(rest[-2])["response"]["status"] == "cancelled"
    assert httpx.get(address).json()["status"] == "cancelled"


def test_a_waiting_call_returns_when_it_is_cancelled(server: LiveServer) -> None:
    gate = server.on_loop(asyncio.Event)
    server.engine.play(text_ids("par"), ScriptGate(gate))
    live = server.services.shelf.live
    earlier = set(live)
    box: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: box.update(post(server).json()))
    thread.start()
    while not (made := set(live) - earlier):
        thread.join(0.01)
    ((_, name),) = made
    assert httpx.post(f"{server.url}/v1/responses/{name}/cancel").json()["status"] == "cancelled"
    thread.join(10)
    assert box["status"] == "cancelled" and box["id"] == name


def test_responses_survive_a_restart(tmp_path: Path) -> None:
    settings = {"responses.store_path": str(tmp_path / "r.sqlite")}
    with toy_server(settings=settings) as first:
        first.engine.play(text_ids("One."))
        response = openai_sdk(first).responses.create(model="toy", input="a")
    with toy_server(settings=settings) as second:
        assert openai_sdk(second).responses.retrieve(response.id) == response
        openai_sdk(second).responses.create(model="toy", input="b", previous_response_id=response.id)
        assert "One." in prompt_of(second)


def test_without_a_store_the_default_works_and_says_false() -> None:
    with toy_server(settings={"responses.store": "off"}) as live:
        response = post(live)
        assert response.status_code == 200 and response.json()["store"] is False
        assert post(live, store=True).json()["error"]["param"] == "store"
        assert httpx.get(f"{live.url}/v1/responses/{response.json()['id']}").status_code == 404
        assert post(live, previous_response_id="resp_x").status_code == 404


def test_a_broken_store_finds_nothing_and_answers_are_still_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with toy_server(settings={"responses.store_path": str(tmp_path / "file" / "r.sqlite")}) as live:
        response = post(live)
        assert response.status_code == 200
        assert httpx.get(f"{live.url}/v1/responses/{response.json()['id']}").status_code == 404
        assert post(live, stream=True).text.endswith("data: [DONE]\n\n")
        assert httpx.get(f"{live.url}/metrics").status_code == 200


def test_a_free_form_tool_is_called_with_text_and_its_answer_read(server: LiveServer, sdk: openai.OpenAI) -> None:
    patch = '*** Begin Patch\n*** Add File: a.py\n+print("grün 🌱")\n*** End Patch'
    tool: Any = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
    server.engine.play(text_ids("<think>edit</think>" + call_text("apply_patch", input=patch)))
    asked: Any = [{"role": "user", "content": "Write a.py"}]
    with sdk.responses.stream(model="toy", input=asked, tools=[tool]) as stream:
        told = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in told if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == patch and len(deltas) > 1
    call: Any = final.output[-1]
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", patch)
    sent: list[Any] = [item.model_dump(exclude_none=True) for item in final.output]
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done!"}
    server.engine.play(text_ids("It is written."))
    answer = sdk.responses.create(model="toy", input=[*asked, *sent, result], tools=[tool])
    assert answer.output_text == "It is written."
    assert "*** Add File: a.py" in prompt_of(server) and "Done!" in prompt_of(server)
