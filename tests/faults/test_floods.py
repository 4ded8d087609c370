"""Floods beyond every limit: each is refused with the right status in a shape of its own, and nothing stays behind."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.api.live_server import LiveServer
from tests.api.raw_http import answer, connect, head, posted
from tests.faults.storm import LIMIT_S, Ask, fulfil, left, storm_server, until_peace

pytestmark = pytest.mark.timeout(300)
CHAT = "/v1/chat/completions"
SETTINGS: dict[str, Any] = {
    "server.max_concurrent": 4,
    "server.max_queued_tokens": 2000,
    "server.max_connections": 64,
    "server.max_body_mib": 1,
    "server.max_body_memory_mib": 8,
    "server.rate_limit": 5,
    "server.trusted_proxy": ("127.0.0.1",),
    "server.max_n": 2,
    "server.max_batch_items": 4,
    "server.max_input_tokens": 3000,
    "server.max_stop": 4,
    "server.max_tools": 2,
    "server.max_messages": 8,
    "server.max_logit_bias": 8,
    "server.max_json_depth": 16,
    "server.max_json_values": 20000,
    "server.head_timeout_s": 2.0,
    "responses.max_sockets": 2,
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
    with storm_server(tmp_path_factory.mktemp("model"), **settings) as live:
        yield live


@pytest.fixture(autouse=True)
def nothing_stays(live: LiveServer) -> Iterator[None]:
    before = until_peace(live, left(live))
    yield
    until_peace(live, before)
    with httpx.Client(base_url=live.url, timeout=LIMIT_S) as http:
        assert fulfil(http, Ask("chat", 1, 2)).is_whole, "whoever keeps to the limits is served"


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2} | more


def test_more_at_once_than_there_are_places(live: LiveServer) -> None:
    """Sixty clients at four places: every answer is a whole one or a 429 with Retry-After, on every dialect."""
    kinds = ("chat", "chat stream", "messages stream", "responses stream", "native stream", "completions stream")
    gate = threading.Barrier(60)

    def one(i: int) -> tuple[int, str, bool]:
        ask = Ask(kinds[i % len(kinds)], i % 12, 30)
        with httpx.Client(base_url=live.url, timeout=LIMIT_S) as http:
            gate.wait(30)
            outcome = fulfil(http, ask)
        assert not outcome.broken, outcome
        return outcome.status, str((outcome.error or {}).get("type")), outcome.is_whole

    with ThreadPoolExecutor(60) as clients:
        found = list(clients.map(one, range(60)))
    statuses = Counter(status for status, _, _ in found)
    print(f"\n60 at once at 4 places: {dict(statuses)}")
    assert set(statuses) == {200, 429} and statuses[200] >= 4
    assert all(is_whole for status, _, is_whole in found if status == 200)
    types = {kind for status, kind, _ in found if status == 429}
    assert types <= {"rate_limit_error", "overloaded_error", "rate_limit_exceeded", "unavailable_error"}, types


def test_more_prompt_tokens_than_may_wait(live: LiveServer) -> None:
    prompt = "x " * 700
    with ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(httpx.post, live.url + CHAT, json=body(messages=[{"role": "user", "content": prompt}]),
                                timeout=LIMIT_S) for _ in range(4)]  # fmt: skip
        statuses = Counter(one.result().status_code for one in asked)
    assert set(statuses) <= {200, 429} and statuses[200] >= 1


def test_more_requests_a_minute_than_one_address_may_have(live: LiveServer) -> None:
    found = Counter[int]()
    for i in range(12):
        reply = httpx.get(live.url + "/v1/models", headers={"x-forwarded-for": f"1.2.3.4, 203.0.113.{7 + i % 2}"})
        found[reply.status_code] += 1
        if reply.status_code == 429:
            assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert found == {200: 10, 429: 2}
    assert httpx.get(live.url + "/health", headers={"x-forwarded-for": "203.0.113.7"}).status_code == 200


def test_more_connections_than_there_may_be(live: LiveServer) -> None:
    with ExitStack() as sockets:
        for i in range(300):
            sock = sockets.enter_context(connect(live.url))
            sock.sendall(b"" if i % 2 else b"POST ")
            if i % 50 == 49:
                assert httpx.get(live.url + "/health", timeout=10).status_code == 200
        assert len(live.services.admission.connections) <= 64


def test_more_bytes_than_bodies_may_have(live: LiveServer) -> None:
    """Twenty bodies of a megabyte that stall: eight MiB are all they get together, and small ones go on."""
    n_bytes = (1 << 20) - 4096
    sized = head(CHAT, "content-type: application/json", f"content-length: {n_bytes}")
    with ExitStack() as sockets:
        stalled = [sockets.enter_context(connect(live.url)) for _ in range(20)]
        for sock in stalled:
            sock.sendall(sized + b'{"model": "' + b"x" * (n_bytes - 100))
        refused = 0
        for sock in stalled:
            sock.settimeout(0.2)
            try:
                status, headers, data = answer(sock)
            except TimeoutError:
                continue
            except (AssertionError, ConnectionError):
                refused += 1
                continue
            assert ((status, headers["retry-after"]) == (503, "1") and b"max" in data) or b"memory" in data
            refused += 1
        assert live.services.admission.bodies.n_taken <= 8 << 20
        print(f"\n{refused} of 20 stalled bodies of 1 MiB were refused")
        assert refused >= 10
        assert httpx.post(live.url + CHAT, json=body(), timeout=LIMIT_S).status_code == 200


ENDLESS_HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * (80 << 10)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (posted(body(x="y" * (1 << 20))), 413),
        (ENDLESS_HEAD, 431),
        (b"NOT HTTP AT ALL\r\n\r\n", 400),
        (posted(body()).replace(b"application/json", b"application/xml"), 415),
        (posted(json.loads("[" * 15 + "]" * 15)), 400),
    ],
    ids=["body", "head", "no http", "media", "not an object"],
)
def test_one_request_beyond_a_limit(live: LiveServer, data: bytes, status: int) -> None:
    for _ in range(5):
        with connect(live.url) as sock:
            try:
                sock.sendall(data)
            except ConnectionError:
                continue
            assert answer(sock)[0] == status


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"n": 3}, "n"),
        (CHAT, {"stop": list("abcde")}, "stop"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 9}, "messages"),
        (CHAT, {"logit_bias": {str(i): 1 for i in range(9)}}, "logit_bias"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(3)]}, "tools"),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 3000}]}, "messages"),
        ("/v1/completions", {"prompt": ["x"] * 5}, "prompt"),
        ("/v1/completions", {"prompt": [[1, "x"]] * 5}, "prompt"),
        ("/completion", {"prompt": ["x"] * 5}, "prompt"),
        ("/v1/embeddings", {"input": ["x"] * 5}, "input"),
        ("/embedding", {"content": ["x"] * 5}, "content"),
        ("/tokenize", {"content": "x " * 3000}, "content"),
    ],
)
def test_more_of_something_than_there_may_be(live: LiveServer, path: str, more: dict[str, Any], param: str) -> None:
    with ThreadPoolExecutor(4) as clients:
        replies = list(clients.map(lambda _: httpx.post(live.url + path, json=body(**more), timeout=LIMIT_S), range(8)))
    for reply in replies:
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"].startswith(param)


def test_more_websockets_than_there_may_be(live: LiveServer) -> None:
    upgrade = head("/v1/responses", "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13",
                   "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", method="GET")  # fmt: skip
    with ExitStack() as sockets:
        statuses = []
        for _ in range(5):
            sock = sockets.enter_context(connect(live.url))
            sock.sendall(upgrade)
            first = b""
            while b"\r\n" not in first:
                first += sock.recv(1 << 12)
            statuses.append(int(first.split()[1]))
        assert statuses == [101, 101, 429, 429, 429]
