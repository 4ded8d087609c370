"""Faults that other servers had with constraints they couldn't enforce: on every route, streamed or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, toy_server

USER = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": USER}),
    "completions": ("/v1/completions", {"prompt": "hi"}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"messages": USER, "max_tokens": 64}),
}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"guided_grammar": "root ::= nowhere"}, "nowhere"),
    ({"guided_grammar": 'root ::= root "a"'}, "root"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_regex": r"(a)\1"}, "guided_regex"),
    ({"guided_json": {"$ref": "#/$defs/Missing"}}, "$ref"),
    ({"guided_json": '{"type": '}, "guided_json"),
    ({"guided_json": {"type": "integer", "minimum": 3, "maximum": 2}}, "guided_json"),
    ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


def post(server: LiveServer, route: str, **more: Any) -> httpx.Response:
    path, body = ROUTES[route]
    return httpx.post(server.url + path, json={"model": "toy", **body, **more}, timeout=20)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("route", list(ROUTES))
def test_a_bad_constraint_is_a_400_and_nothing_else(server: LiveServer, route: str, streamed: bool) -> None:
    """Never answered unconstrained; and the next request is served, bound or not."""
    n_seen = len(server.engine.requests_seen)
    for bad, says in BAD:
        refused = post(server, route, stream=streamed, **bad)
        assert refused.status_code == 400, (bad, refused.text)
        assert refused.headers["content-type"].startswith("application/json")
        if route != "messages":  # Anthropic's errors name no field
            assert says in refused.text, (bad, refused.text)
    assert len(server.engine.requests_seen) == n_seen, "nothing reached the engine"
    server.engine.play(text_ids("ab"))
    assert post(server, route, guided_regex="ab").status_code == 200
    assert server.engine.requests_seen[-1].plan.grammar is not None
    server.engine.play(text_ids("free"))
    assert post(server, route).status_code == 200
