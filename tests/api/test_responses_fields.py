"""What a Responses reply says of itself: the numbers in force, and whether it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import openai_sdk, toy_server
from tests.toy import CHATML

ASK: dict[str, Any] = {"model": "toy", "input": "hi"}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(CHATML) as live:
        live.engine.always(text_ids("ok"))
        yield live


def numbers(reply: Any) -> tuple[float, ...]:
    return (reply["temperature"], reply["top_p"], reply["presence_penalty"], reply["frequency_penalty"])


def test_the_servers_own_numbers_where_the_client_named_none(server: LiveServer) -> None:
    for more in ({}, {"temperature": None, "top_p": None}):
        reply = httpx.post(f"{server.url}/v1/responses", json=ASK | more).json()
        sampling = server.engine.requests_seen[-1].sampling
        assert numbers(reply) == (sampling.temperature, sampling.top_p, 0.0, 0.0)
        assert all(isinstance(number, float | int) for number in numbers(reply))


def test_the_clients_numbers_in_every_event_and_in_the_store(server: LiveServer) -> None:
    wanted = {"temperature": 0.25, "top_p": 0.5, "presence_penalty": 0.1, "frequency_penalty": -0.1}
    with openai_sdk(server).responses.stream(**ASK, extra_body=wanted) as stream:
        events: list[Any] = [event for event in stream if hasattr(event, "response")]
        seen = [event.response.model_dump() for event in events]
        final = stream.get_final_response().model_dump()
    assert len(seen) == 3
    kept = httpx.get(f"{server.url}/v1/responses/{final['id']}").json()
    for resource in (*seen, kept):
        assert numbers(resource) == tuple(wanted.values())


@pytest.mark.parametrize("settings", [{"responses.store": "off"}, {"responses.store_max_entries": 0}])
def test_store_true_where_nothing_is_kept_is_refused(settings: dict[str, Any]) -> None:
    with toy_server(CHATML, settings=settings) as live:
        live.engine.always(text_ids("ok"))
        refused = httpx.post(f"{live.url}/v1/responses", json=ASK | {"store": True})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")
        for store in ({}, {"store": None}, {"store": False}):
            assert httpx.post(f"{live.url}/v1/responses", json=ASK | store).json()["store"] is False


def test_an_empty_suffix_is_none(server: LiveServer) -> None:
    """The model has no tokens for a gap, so that any other suffix is refused."""
    ask = {"model": "toy", "prompt": "hi", "max_tokens": 2}
    assert httpx.post(f"{server.url}/v1/completions", json=ask | {"suffix": ""}).status_code == 200
    refused = httpx.post(f"{server.url}/v1/completions", json=ask | {"suffix": "x"})
    assert refused.json()["error"]["code"] == "fim_not_supported"
