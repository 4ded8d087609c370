"""HTTP/1.1 as clients really speak it: offers of other protocols, HTTP/1.0, time limits, too many connections."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from imp_server.api.server import bind
from imp_server.config.serving import ServerSettings
from imp_server.engine.client.scripted import ScriptGate

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT, answer, connect, head, posted, to_end

H2C = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA")


# --- offers of another protocol -----------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [H2C, ("connection: upgrade", "upgrade: websocket"), ("connection: Upgrade", "upgrade: h2c, x")]
)
def test_an_offer_is_ignored_and_the_body_kept(server: LiveServer, fields: tuple[str, ...]) -> None:
    """RFC 9110 7.8. The connection goes on in HTTP/1.1, whatever way the bytes come."""
    with connect(server.url) as sock:
        for _ in range(2):
            sock.sendall(posted(BODY, *fields))
            status, _, body = answer(sock)
            assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "Hello wörld")
        data = posted(BODY, *fields) + posted(BODY)
        for at in range(0, len(data), 7):
            sock.sendall(data[at : at + 7])
        assert answer(sock)[0] == answer(sock)[0] == 200


def test_an_offer_with_a_chunked_body(server: LiveServer) -> None:
    data = json.dumps(BODY).encode()
    with connect(server.url) as sock:
        sock.sendall(head(CHAT, "content-type: application/json", "transfer-encoding: chunked", *H2C))
        for at in range(0, len(data), 20):
            sock.sendall(b"%x\r\n%b\r\n" % (len(data[at : at + 20]), data[at : at + 20]))
        sock.sendall(b"0\r\n\r\n")
        assert answer(sock)[0] == 200


def test_an_offer_without_a_body(server: LiveServer) -> None:
    with connect(server.url) as sock:
        for _ in range(2):
            sock.sendall(head("/health", *H2C, method="GET"))
            assert answer(sock)[0] == 200


def test_a_websocket_offer_elsewhere_is_ignored(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    with connect(server.url) as sock:
        sock.sendall(head("/v1/models", "connection: Upgrade", "upgrade: websocket", method="GET"))
        assert answer(sock)[0] == 200
    assert "WebSocket library" not in caplog.text and "pip install" not in caplog.text


def test_nobody_is_told_to_install_anything(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), connect(server.url) as sock:
        sock.sendall(posted(BODY, *H2C))
        assert answer(sock)[0] == 200
    assert "pip install" not in caplog.text and "Unsupported upgrade" not in caplog.text


# --- HTTP/1.0 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_old_clients_get_no_chunks(server: LiveServer, stream: bool) -> None:
    with connect(server.url) as sock:
        sock.sendall(posted({**BODY, "stream": stream}, version="1.0"))
        fields, _, body = to_end(sock).partition(b"\r\n\r\n")
    assert b" 200 " in fields and b"transfer-encoding" not in fields.lower()
    if stream:
        assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(body)["choices"][0]["message"]["content"] == "Hello wörld"


def test_new_clients_get_chunks(server: LiveServer) -> None:
    with connect(server.url) as sock:
        sock.sendall(posted({**BODY, "stream": True}, "connection: close"))
        assert b"transfer-encoding: chunked" in to_end(sock).lower()


# --- time ---------------------------------------------------------------------------------------

QUICK = {
    "server.head_timeout_s": 0.3,
    "server.body_timeout_s": 0.3,
    "server.send_timeout_s": 0.4,
    "server.keep_alive_s": 1.0,
}


@pytest.fixture(scope="module")
def quick() -> Iterator[LiveServer]:
    with live_server(scripted, ByteText, settings=QUICK) as live:
        yield live


def seconds_until_closed(sock: socket.socket) -> tuple[float, bytes]:
    start = time.monotonic()
    data = to_end(sock)
    return time.monotonic() - start, data


def test_a_silent_connection_is_closed(quick: LiveServer) -> None:
    with connect(quick.url) as sock:
        took_s, data = seconds_until_closed(sock)
    assert (data, took_s < 2) == (b"", True)


def test_a_slow_head_is_answered_with_408(quick: LiveServer) -> None:
    """Bytes that drip in don't help: the head has its time in all."""
    with connect(quick.url) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        start = time.monotonic()
        data = b""
        sock.settimeout(0.05)
        while time.monotonic() - start < 5 and not data:
            try:
                sock.sendall(b"x: y\r\n")
                data = sock.recv(4096)
            except TimeoutError:
                pass
        assert data.startswith(b"HTTP/1.1 408 ") and time.monotonic() - start < 2


def test_a_body_that_stops_is_answered_with_408_in_the_dialects_shape(quick: LiveServer) -> None:
    for path, kind in ((CHAT, "request_timeout"), ("/v1/messages", "timeout_error")):
        with connect(quick.url) as sock:
            sock.sendall(head(path, "content-type: application/json", "content-length: 1000") + b'{"model":')
            took_s, data = seconds_until_closed(sock)
        assert data.startswith(b"HTTP/1.1 408 ") and kind.encode() in data and 0.2 < took_s < 3
        assert b"connection: close" in data


def test_a_body_must_come_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imp_server.api.body._GRACE_S", 0.2)
    with live_server(scripted, ByteText, settings={"server.body_timeout_s": 5}) as live, connect(live.url) as sock:
        sock.sendall(head(CHAT, "content-type: application/json", "content-length: 100000"))
        sock.settimeout(0.02)
        start, data = time.monotonic(), b""
        while time.monotonic() - start < 4 and not data:
            try:
                sock.sendall(b" " * 20)  # 1,000 bytes a second, never without progress
                data = sock.recv(4096)
            except TimeoutError:
                pass
        assert data.startswith(b"HTTP/1.1 408 ") and time.monotonic() - start < 2
        steady = json.dumps(BODY).encode().ljust(60_000)
        with connect(live.url) as other:
            other.sendall(head(CHAT, "content-type: application/json", f"content-length: {len(steady)}"))
            for at in range(0, len(steady), 6000):
                other.sendall(steady[at : at + 6000])
                time.sleep(0.05)
            assert answer(other)[0] == 200


def test_what_was_answered_early_must_still_end(quick: LiveServer) -> None:
    with connect(quick.url) as sock:
        sock.sendall(head("/nope", "content-length: 1000") + b"x")
        took_s, data = seconds_until_closed(sock)
    assert data.startswith(b"HTTP/1.1 404 ") and took_s < 2


def test_an_idle_connection_is_kept_for_its_time(quick: LiveServer) -> None:
    with connect(quick.url) as sock:
        sock.sendall(head("/health", method="GET"))
        assert answer(sock)[0] == 200
        took_s, _ = seconds_until_closed(sock)
    assert 0.7 < took_s < 3


def test_a_client_that_reads_nothing_is_let_go(quick: LiveServer) -> None:
    """A large answer that nobody reads: the connection ends, and the others go on."""
    with connect(quick.url) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(head("/openapi.json", method="GET") * 30)
        until(lambda: len(quick.services.admission.connections) > 0, 2)
        until(lambda: len(quick.services.admission.connections) == 0, 5)


def until(condition: object, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


# --- too many -----------------------------------------------------------------------------------


def test_the_oldest_idle_connection_makes_room(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"server.max_connections": 8}
    with live_server(scripted, ByteText, settings=settings) as live, ExitStack() as open_:
        socks = [open_.enter_context(connect(live.url)) for _ in range(40)]
        for _ in range(5):
            assert httpx.get(live.url + "/health", timeout=5).status_code == 200
        socks[0].settimeout(2)
        assert to_end(socks[0]) == b"", "the oldest was closed"
        assert len(live.services.admission.connections) <= 8
    lines = [r.getMessage() for r in caplog.records if "too many connections" in r.getMessage()]
    assert 1 <= len(lines) <= 4, "one line a second at most"


def test_answers_under_way_are_never_cut_for_new_connections() -> None:
    from tests.api.test_streams import gate, new_engine

    with live_server(new_engine, ByteText, settings={"server.max_connections": 4}) as live, ExitStack() as open_:
        gates = [gate(live)]
        live.engine.answer_with(lambda _r, _c: [ScriptGate(gates[0])])
        busy = [open_.enter_context(connect(live.url)) for _ in range(4)]
        for sock in busy:
            sock.sendall(posted(BODY))
        until(lambda: live.services.admission.gate.n_taken == 4, 5)
        with connect(live.url) as late:
            data = to_end(late)
        assert data.startswith(b"HTTP/1.1 503 ") and b"as many connections as it can take" in data
        live.on_loop(gates[0].set)
        assert [answer(sock)[0] for sock in busy] == [200] * 4


FLOOD = """
import socket, sys, time
from urllib.parse import urlsplit
parts = urlsplit(sys.argv[1])
def connect():
    return socket.create_connection((parts.hostname, parts.port), timeout=5)
socks = [connect() for _ in range(200)]
for i in range(100):
    socks.append(connect()); socks[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nx: ")
for i in range(100):
    socks.append(connect())
    socks[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\ncontent-type: application/json\\r\\n"
                      b"content-length: 9999\\r\\n\\r\\n{")
print("flooded", flush=True)
time.sleep(60)
"""
SERVE = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
from imp_server.api.services import build_services
from imp_server.api.server import bind, run
from imp_server.config import Config
config = Config.of({"server.port": 0, "responses.store_path": ":memory:"})
asyncio.run(run(build_services(config), bind(config.server), lambda line: print(line, flush=True)))
"""


def test_health_answers_in_a_flood_near_the_descriptor_limit() -> None:
    """200 silent connections, 100 slow heads and 100 slow bodies against 96 descriptors."""
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True))
        stack.callback(server.kill)
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        flood = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", FLOOD, url], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(flood.kill)
        assert flood.stdout is not None and flood.stdout.readline() == "flooded\n"
        for _ in range(10):
            start = time.monotonic()
            assert httpx.get(url + "/health", timeout=5).status_code == 200
            assert time.monotonic() - start < 1


# --- where it listens ---------------------------------------------------------------------------


def test_several_addresses_and_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "imp.sock"
    settings = {"server.host": ("127.0.0.1", "127.0.0.2", f"unix:{path}")}
    with live_server(scripted, ByteText, settings=settings) as live:
        port = httpx.URL(live.url).port
        assert httpx.get(f"http://127.0.0.2:{port}/health").status_code == 200
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.post("http://imp" + CHAT, json=BODY).status_code == 200
    assert not path.exists(), "a server that ends takes its socket with it"


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "imp.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    (sock,) = bind(ServerSettings(host=(f"unix:{path}",)))
    with sock, pytest.raises(Exception, match="can't listen on"):
        bind(ServerSettings(host=(str(path),)))


def test_without_a_port_for_one_there_is_none_for_any() -> None:
    (taken,) = bind(ServerSettings(host=("127.0.0.2",), port=0))
    port = taken.getsockname()[1]
    with taken, pytest.raises(Exception, match="choose another --port"):
        bind(ServerSettings(host=("127.0.0.1", "127.0.0.2"), port=port))
    for sock in bind(ServerSettings(host=("127.0.0.1",), port=port)):  # the first was let go again
        sock.close()
