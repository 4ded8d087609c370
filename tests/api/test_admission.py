"""Who gets in: places at the one gate, requests per address, memory of bodies, and the order of the questions."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.api.admission import connections
from imp_server.api.admission.addresses import Proxies, limited_as
from imp_server.api.admission.body_memory import BodyMemory
from imp_server.api.admission.gate import Gate
from imp_server.api.admission.rare_log import RareLog
from imp_server.api.admission.rates import MOST_ADDRESSES, RateLimit
from imp_server.config.serving import ServerSettings
from imp_server.core import ConfigError, Overloaded, PayloadTooLarge, Unavailable
from imp_server.engine.client.scripted import ScriptGate as Hold

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT, answer, connect, head, posted
from tests.api.test_streams import gate, new_engine

KEY = {"authorization": "Bearer k"}
FORWARDED = {"x-forwarded-for": "203.0.113.9"}


# --- the gate -----------------------------------------------------------------------------------


def test_places_are_counted() -> None:
    gate_ = Gate(2)
    first, second = gate_.take(), gate_.take()
    with pytest.raises(Overloaded):
        gate_.check()
    first.leave()
    first.leave()
    gate_.take()
    with pytest.raises(Overloaded):
        gate_.take()
    second.leave()
    gate_.check()
    for _ in range(1000):
        Gate(0).take()


@pytest.fixture
def full() -> Iterator[LiveServer]:
    """One place, and a stream that has it until `live.release` is set; a key."""
    settings = {"server.max_concurrent": 1, "server.api_key": ("k",)}
    with live_server(new_engine, ByteText, settings=settings) as live:
        hold = gate(live)
        live.engine.answer_with(lambda _r, _c: [Hold(hold)])
        with httpx.stream("POST", live.url + CHAT, json={**BODY, "stream": True}, headers=KEY) as stream:
            assert stream.status_code == 200
            yield live
            live.on_loop(hold.set)


def inference_paths(live: LiveServer) -> list[str]:
    return [one.path for one in live.services.contract.operations if one.is_inference]


def test_a_full_gate_refuses_on_every_dialect_by_the_head_alone(full: LiveServer) -> None:
    paths = inference_paths(full)
    assert {CHAT, "/v1/messages", "/v1/responses", "/v1/completions", "/completion", "/generate"} <= set(paths)
    for path in paths:
        with connect(full.url) as sock:
            sock.sendall(head(path, "authorization: Bearer k", "content-type: application/json", "content-length: 99"))
            status, headers, body = answer(sock)
        assert (status, headers["retry-after"]) == (429, "1"), path
        assert b"Server overloaded" in body
    assert httpx.get(full.url + "/health").status_code == 200
    assert httpx.get(full.url + "/v1/models", headers=KEY).status_code == 200


def test_a_wrong_key_is_told_so_whether_the_gate_is_full_or_not(full: LiveServer) -> None:
    for path in inference_paths(full):
        assert httpx.post(full.url + path, content=b"{", headers={"x-api-key": "no"}).status_code == 401


def test_draining_comes_before_all_else(full: LiveServer) -> None:
    full.services.draining = True
    try:
        for path in inference_paths(full):
            response = httpx.post(full.url + path, content=b"{", headers={"x-api-key": "no"})
            assert (response.status_code, response.headers["retry-after"]) == (503, "5"), path
    finally:
        full.services.draining = False


def test_a_place_is_free_when_the_answer_is_complete() -> None:
    """One after the other is never too many, whatever became of the one before."""
    bodies: tuple[dict[str, Any], ...] = (
        BODY,
        {**BODY, "stream": True},
        {},
        {**BODY, "temperature": 9},
        {**BODY, "model": "x"},
    )
    settings = {"server.max_concurrent": 1}
    with live_server(scripted, ByteText, settings=settings) as live, httpx.Client(base_url=live.url) as client:
        for body in bodies * 5:
            assert client.post(CHAT, json=body).status_code != 429
            assert live.services.admission.gate.n_taken == 0


def test_a_client_that_leaves_frees_its_place() -> None:
    with live_server(new_engine, ByteText, settings={"server.max_concurrent": 1}) as live:
        hold = gate(live)
        live.engine.answer_with(lambda _r, _c: [Hold(hold)])
        with connect(live.url) as sock:
            sock.sendall(posted({**BODY, "stream": True}))
            sock.recv(100)
            assert httpx.post(live.url + CHAT, json=BODY).status_code == 429
        end = time.monotonic() + 5
        while live.services.admission.gate.n_taken:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_a_place_is_taken_only_when_the_body_is_complete() -> None:
    with live_server(scripted, ByteText, settings={"server.max_concurrent": 1}) as live:
        data = posted(BODY)
        with connect(live.url) as slow:
            slow.sendall(data[:-5])
            assert httpx.post(live.url + CHAT, json=BODY).status_code == 200
            slow.sendall(data[-5:])
            assert answer(slow)[0] == 200


# --- requests per address -----------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_per_address_and_minute() -> None:
    clock = Clock()
    rates = RateLimit(2, clock)
    for address in ("203.0.113.1", "203.0.113.2"):
        rates.check(address)
        rates.check(address)
    clock.now += 20
    with pytest.raises(Overloaded) as refused:
        rates.check("203.0.113.1")
    assert refused.value.retry_after_s == 40
    clock.now += 40
    rates.check("203.0.113.1")
    for exempt in ("127.0.0.1", "::1", "127.9.9.9", "::ffff:127.0.0.1", "unix"):
        for _ in range(9):
            rates.check(exempt)
    for _ in range(9):
        RateLimit(0).check("203.0.113.1")


def test_a_network_of_ipv6_is_one_client_and_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = RateLimit(1)
    rates.check("2001:db8::1")
    with pytest.raises(Overloaded):
        rates.check("2001:db8::2")
    monkeypatch.setattr("imp_server.api.admission.rates.MOST_ADDRESSES", 10)
    assert MOST_ADDRESSES > 1000
    for i in range(50):
        rates.check(f"203.0.113.{i}")
    assert len(rates._windows) == 10


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),  # nobody that is trusted
        ("10.0.0.7", "", "10.0.0.7"),
        ("10.0.0.7", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.7", "6.6.6.6, 198.51.100.1", "198.51.100.1"),  # the client wrote the first one
        ("10.0.0.7", "198.51.100.1, 10.0.0.8", "198.51.100.1"),
        ("10.0.0.7", "10.0.0.9, 10.0.0.8", "10.0.0.9"),
        ("10.0.0.7", "198.51.100.1, nonsense", "10.0.0.7"),
        ("10.0.0.7", "[2001:db8::1]", "2001:db8::1"),
        ("unix", "198.51.100.1", "198.51.100.1"),
    ],
)
def test_the_address_that_counts(peer: str, forwarded: str, client: str) -> None:
    assert Proxies(("10.0.0.0/24", "unix")).client(peer, forwarded) == client


def test_wrong_proxies_and_endless_headers() -> None:
    with pytest.raises(ConfigError, match="trusted-proxy"):
        Proxies(("example",))
    start = time.monotonic()
    Proxies(("10.0.0.0/8",)).client("10.0.0.1", "10.0.0.1," * 10_000)
    assert time.monotonic() - start < 0.05
    assert limited_as("2001:db8::1") == "2001:db8::/64" and limited_as("::ffff:1.2.3.4") == "1.2.3.4"


def test_the_rate_limit_comes_before_the_key_and_spares_probes() -> None:
    settings = {"server.rate_limit": 2, "server.trusted_proxy": ("127.0.0.1",), "server.api_key": ("k",)}
    with live_server(scripted, ByteText, settings=settings) as live, httpx.Client(base_url=live.url) as client:
        assert [client.get("/v1/models", headers=FORWARDED).status_code for _ in range(4)] == [401, 401, 429, 429]
        refused = client.post(CHAT, json=BODY, headers=FORWARDED | KEY)
        assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        for _ in range(4):
            assert client.get("/health", headers=FORWARDED).status_code == 200
            assert client.get("/metrics", headers=FORWARDED | KEY).status_code == 200
            assert client.get("/v1/models", headers=KEY).status_code == 200, "loopback has no limit"
        other = {"x-forwarded-for": "203.0.113.10"}
        assert client.get("/v1/models", headers=other | KEY).status_code == 200


# --- memory of bodies ---------------------------------------------------------------------------


def test_bodies_are_charged_and_given_back() -> None:
    memory = BodyMemory(100)
    one, other = memory.charge(), memory.charge()
    one.add(60)
    with pytest.raises(Unavailable) as refused:
        other.add(50)
    assert refused.value.status == 503 and refused.value.retry_after_s
    with pytest.raises(PayloadTooLarge):
        one.add(50)
    other.add(40)
    one.close()
    one.close()
    assert memory.n_taken == 40
    other.give_back(99)
    assert memory.n_taken == 0


def test_bodies_being_received_count() -> None:
    settings = {"server.max_body_memory_mib": 2}
    with live_server(scripted, ByteText, settings=settings) as live, connect(live.url) as slow:
        slow.sendall(head(CHAT, "content-type: application/json", "content-length: 1900000") + b" " * 1_800_000)
        end = time.monotonic() + 5
        while live.services.admission.bodies.n_taken < 1_800_000:
            assert time.monotonic() < end
            time.sleep(0.01)
        refused = httpx.post(live.url + CHAT, content=b" " * 500_000, headers={"content-type": "application/json"})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert "512" not in refused.text and "2 MiB" in refused.text
        assert httpx.post(live.url + CHAT, json=BODY).status_code == 200
        slow.close()
        end = time.monotonic() + 5
        while live.services.admission.bodies.n_taken:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_body_announced_in_vain_is_refused_before_it_is_sent() -> None:
    with live_server(scripted, ByteText, settings={"server.max_body_memory_mib": 1}) as live, connect(live.url) as sock:
        sock.sendall(head(CHAT, "content-type: application/json", "content-length: 2000000"))
        assert answer(sock)[0] == 413


def test_every_charge_ends_with_its_request() -> None:
    with live_server(scripted, ByteText) as live:

        def post(body: Any) -> None:
            httpx.post(live.url + CHAT, json=body, timeout=30)

        big = {**BODY, "messages": [{"role": "user", "content": "x" * 2_000_000}]}
        threads = [threading.Thread(target=post, args=(body,)) for body in (BODY, {}, big, big, {**big, "n": 0})]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert live.services.admission.bodies.n_taken == 0


# --- descriptors --------------------------------------------------------------------------------


def test_there_are_as_many_connections_as_descriptors_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that workers, models and files take are counted again and again."""
    in_use = 100
    monkeypatch.setattr(connections, "_descriptor_limit", lambda: 600)
    monkeypatch.setattr(connections, "_descriptors_in_use", lambda: in_use)
    table = connections.Connections(ServerSettings(head_timeout_s=0.04), Proxies(()))
    assert table.limit == 600 - 100 - connections.SPARE_DESCRIPTORS
    in_use = 500

    async def watch() -> None:
        watching = asyncio.create_task(table.watch())
        await asyncio.sleep(0.05)
        watching.cancel()

    asyncio.run(watch())
    assert table.limit == 600 - 500 - connections.SPARE_DESCRIPTORS


# --- the log ------------------------------------------------------------------------------------


def test_a_flood_is_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RareLog(logging.getLogger("imp_server.test"), clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            log.note("too many")
        log.note("another kind")
        clock.now += 1.1
        log.note("too many", ": 7")
    assert caplog.messages == ["too many", "another kind", "too many: 7 (49 more of these since the last line)"]


def test_requests_that_are_turned_away_are_one_line_a_second(
    full: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="imp_server.api"), httpx.Client(base_url=full.url, headers=KEY) as client:
        for _ in range(30):
            assert client.post(CHAT, json=BODY).status_code == 429
            assert client.get("/v1/models/nope").status_code == 404
    lines = [record.getMessage() for record in caplog.records if record.name == "imp_server.api.visit"]
    assert 1 <= len([line for line in lines if line.startswith("HTTP 429")]) < 10
    assert len([line for line in lines if line.startswith("HTTP 404")]) == 30, "every other one is told"
