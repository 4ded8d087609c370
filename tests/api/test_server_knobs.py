"""Every limit of a request that is a knob changes what is refused, on a live server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from imp_server.config.knobs import knobs

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import live_server
from tests.api.raw_http import BODY, CHAT, connect, to_end

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
REFUSED: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "server.max_body_mib": (1, CHAT, {**BODY, "x": "y" * 2_000_000}, 413),
    "server.max_body_memory_mib": (1, CHAT, {**BODY, "x": "y" * 2_000_000}, 413),
    "server.max_json_depth": (3, CHAT, {**BODY, "x": [[[[]]]]}, 400),
    "server.max_json_containers": (5, CHAT, {**BODY, "x": [[], [], [], []]}, 400),
    "server.max_json_values": (9, CHAT, {**BODY, "x": [*range(99)]}, 400),
    "server.max_messages": (1, CHAT, {**BODY, "messages": [USER, USER]}, 400),
    "server.max_stop": (1, CHAT, {**BODY, "stop": ["a", "b"]}, 400),
    "server.max_n": (1, CHAT, {**BODY, "n": 2}, 400),
    "server.max_tools": (1, CHAT, {**BODY, "tools": [TOOL, TOOL | {"function": {"name": "g"}}]}, 400),
    "server.max_logit_bias": (1, CHAT, {**BODY, "logit_bias": {"1": 1, "2": 1}}, 400),
    "server.max_n_probs": (2, "/completion", {"prompt": "a", "n_probs": 3}, 400),
    "server.max_batch_items": (1, "/v1/embeddings", {"model": "m", "input": ["a", "b"]}, 400),
}
"""Knob -> (a value, path, a body that is served by default, the status that it gets then)."""


@pytest.fixture(scope="module")
def usual() -> Any:
    with live_server(scripted, ByteText, check_replies=False) as live:
        yield live.url


@pytest.mark.parametrize("key", REFUSED)
def test_a_limit_is_kept(usual: str, key: str) -> None:
    value, path, body, status = REFUSED[key]
    assert httpx.post(usual + path, json=body, timeout=20).status_code == 200
    with live_server(scripted, ByteText, settings={key: value}) as live:
        response = httpx.post(live.url + path, json=body, timeout=20)
        assert response.status_code == status and response.json()["error"]["message"]


def test_every_limit_of_a_request_is_in_the_table() -> None:
    elsewhere = {
        "server.max_tokens",  # what an answer may have, not a request
        "server.max_input_tokens",
        "server.max_concurrent",
        "server.max_queued_tokens",  # marked: no effect yet
        "server.max_vector_mib",  # tests/api/test_embedding_errors.py
        "server.max_connections",
        "server.max_connections_per_address",
    }
    limits = {key for key in knobs() if key.startswith("server.max_")}
    assert limits - elsewhere == REFUSED.keys()


def test_connections_of_one_address() -> None:
    """Loopback has no such limit; the address that is counted is made one that has."""
    settings = {"server.max_connections_per_address": 2}
    with live_server(scripted, ByteText, settings=settings) as live:
        connections = live.services.admission.connections
        for _ in range(5):
            with connect(live.url) as sock:
                sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                assert b" 200 " in to_end(sock)
        assert connections.may_join("203.0.113.1")
        connections._per_address["203.0.113.1"] = 2
        assert not connections.may_join("203.0.113.1") and connections.may_join("203.0.113.2")
        assert connections.may_join("127.0.0.1") and connections.may_join("unix")
