"""Whom the server trusts: keys and key files, what changes the server, pages of other sites, unknown paths, TLS."""

from __future__ import annotations

import logging
import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from imp_server.api import auth
from imp_server.api import services as services_module
from imp_server.api.auth import KeyRing
from imp_server.api.contract import Contract, load
from imp_server.api.entrance import check_browser
from imp_server.api.headers import Cors
from imp_server.config.serving import ServerSettings
from imp_server.core import ConfigError, Forbidden, Unauthorized, UserFault
from imp_server.core.owner import NOBODY, owner_of

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT

CLOSE = "/v1/sessions/a/close"
CHANGING = "/v1/sessions/{session_id}/close"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# --- keys ---------------------------------------------------------------------------------------


def test_a_key_file_is_read_anew_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("one # mine\n\n# nobody's\ntwo\n")
    ring = KeyRing(["fixed"], file=str(file))
    for key in ("one", "two", "fixed"):
        assert ring.check(bearer(key)).owner == owner_of(key)
    file.write_text("three\n")
    assert ring.check(bearer("three")).owner == owner_of("three")
    assert ring.check({"x-api-key": "fixed"}).owner == owner_of("fixed")
    with pytest.raises(Unauthorized):
        ring.check(bearer("one"))
    with caplog.at_level(logging.ERROR):
        for spoil in (lambda: file.write_text("# none\n"), file.unlink):
            spoil()
            for _ in range(3):
                assert ring.check(bearer("three")).owner == owner_of("three"), "what was read last stays in force"
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"], "each told once"
    assert "three" not in caplog.text
    other = tmp_path / "new"
    other.write_text("four")
    other.rename(file)
    assert ring.check(bearer("four")).owner == owner_of("four")


def test_a_key_file_that_cannot_be_read_once_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("one")
    ring = KeyRing([], file=str(file))
    file.write_text("twice")
    with monkeypatch.context() as patch:
        patch.setattr(auth, "keys_from_file", Mock(side_effect=ConfigError("the disk is slow")))
        assert ring.check(bearer("one")).owner == owner_of("one")
    assert ring.check(bearer("twice")).owner == owner_of("twice"), "though the file is the one it was"


def test_a_key_file_that_cannot_be_used_is_an_error_at_start(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("# nothing\n")
    (tmp_path / "large").write_bytes(b"k\n" * (1 << 20))
    for name in ("none", "large", "missing"):
        with pytest.raises(ConfigError):
            KeyRing(file=str(tmp_path / name))


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"piped\n")
    os.close(writing)
    ring = KeyRing(file=f"/dev/fd/{reading}")
    assert [ring.check(bearer("piped")).owner for _ in range(2)] == [owner_of("piped")] * 2
    os.close(reading)


def test_admin_keys() -> None:
    ring = KeyRing(["k"], admin=["a"])
    assert [ring.check(bearer(key)).is_admin for key in ("k", "a")] == [False, True]
    assert ring.check_admin(bearer("a")).owner == owner_of("a")
    with pytest.raises(Forbidden):
        ring.check_admin(bearer("k"))
    for headers in ({}, bearer("x")):
        with pytest.raises(Unauthorized):
            ring.check_admin(headers)
    assert KeyRing(["k"]).check_admin(bearer("k")).owner == owner_of("k"), "without admin keys any key will do"


def test_admin_keys_alone_leave_the_rest_open() -> None:
    ring = KeyRing(admin=["a"])
    assert ring.is_open and ring.has_admin
    assert ring.check({}).owner == ring.check(bearer("a")).owner == NOBODY
    assert ring.check_admin(bearer("a")).is_admin
    with pytest.raises(Unauthorized):
        ring.check_admin({})
    with pytest.raises(Forbidden):
        ring.check_admin(bearer("other"))


# --- unknown paths, and what is public ------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed() -> Iterator[LiveServer]:
    with live_server(scripted, ByteText, settings={"server.api_key": ("k",)}) as live:
        yield live


def test_unknown_paths_and_methods_ask_for_the_key(keyed: LiveServer) -> None:
    for method, path in (("GET", "/nope"), ("POST", "/v1/nope"), ("GET", CHAT), ("DELETE", "/tokenize")):
        refused = httpx.request(method, keyed.url + path)
        assert refused.status_code == 401 and "www-authenticate" in refused.headers, path
        assert "allow" not in refused.headers
        assert httpx.request(method, keyed.url + path, headers=bearer("k")).status_code in (404, 405)
    anthropic = httpx.post(keyed.url + "/v1/messages/nope").json()
    assert anthropic["error"]["type"] == "authentication_error"
    assert httpx.options(keyed.url + "/nope").status_code == 204


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/ready", "/ping", "/", "/metrics"])
def test_public_paths(keyed: LiveServer, path: str) -> None:
    assert httpx.get(keyed.url + path).status_code == 200
    assert httpx.put(keyed.url + path).status_code == 405


def test_every_other_operation_asks_for_the_key(keyed: LiveServer) -> None:
    asked = [one for one in keyed.services.contract.operations if not one.public]
    assert len(asked) > 25
    with httpx.Client() as http:
        for one in asked:
            path = one.path.replace("{", "").replace("}", "")
            assert http.request(one.method, keyed.url + path, content=b"{").status_code == 401, path


# --- what changes the server ----------------------------------------------------------------------


@contextmanager
def changing_server(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Iterator[LiveServer]:
    """A server on which closing a session counts as a change of the server."""
    original = load

    def changing(*args: Any) -> Contract:
        contract = original(*args)
        operations = [replace(o, changes_server=True) if o.path == CHANGING else o for o in contract.operations]
        contract.document["paths"][CHANGING]["post"]["x-changes-server"] = True
        return replace(contract, operations=tuple(operations))

    monkeypatch.setattr(services_module, "load", changing)
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    with live_server(scripted, ByteText, settings=dotted) as live:
        yield live


def test_a_change_takes_an_admin_key_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with changing_server(monkeypatch, server__api_key=("k",), server__admin_api_key=("a",)) as live:
        statuses = [httpx.post(live.url + CLOSE, headers=h).status_code for h in ({}, bearer("k"), bearer("a"))]
        assert statuses == [401, 403, 200]
        assert httpx.post(live.url + CHAT, json=BODY, headers=bearer("a")).status_code == 200
    with changing_server(monkeypatch, server__admin_api_key=("a",)) as live:
        statuses = [httpx.post(live.url + CLOSE, headers=h).status_code for h in ({}, bearer("k"), bearer("a"))]
        assert statuses == [401, 403, 200]
        assert httpx.post(live.url + CHAT, json=BODY).status_code == 200
        paths = live.services.document()["paths"]
        assert "security" in paths[CHANGING]["post"] and "security" not in paths[CHAT]["post"]


def test_without_an_admin_key_any_key_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with changing_server(monkeypatch, server__api_key=("k",)) as live:
        forwarded = bearer("k") | {"x-forwarded-for": "203.0.113.9"}
        assert [httpx.post(live.url + CLOSE, headers=h).status_code for h in ({}, forwarded)] == [401, 200]


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)])
def test_without_keys_a_change_is_for_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch, trusted: tuple[str, ...]
) -> None:
    with changing_server(monkeypatch, server__trusted_proxy=trusted, server__allowed_hosts=(".example",)) as live:
        assert httpx.post(live.url + CLOSE).status_code == 200
        for name, value in (
            ("x-forwarded-for", "127.0.0.1"),
            ("forwarded", "for=127.0.0.1"),
            ("x-real-ip", "127.0.0.1"),
            ("via", "1.1 proxy"),
        ):
            refused = httpx.post(live.url + CLOSE, headers={name: value})
            assert refused.status_code == 403 and "--admin-api-key" in refused.text, name
            assert httpx.post(live.url + CHAT, json=BODY, headers={name: value}).status_code == 200


def test_a_rebound_name_changes_nothing_even_where_other_machines_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own name leads to 127.0.0.1: for the browser that is one site."""
    rebound = {"host": "evil.example", "origin": "http://evil.example", "sec-fetch-site": "same-origin"}
    with changing_server(monkeypatch, server__host=("0.0.0.0",)) as live:
        url = live.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.post(url + CLOSE, headers=rebound).status_code == 403
        assert httpx.post(url + CLOSE).status_code == 200


MARKS = ("/admin", "/models/", "/slots/", "/lora", "/adapters", "/props", "/suspend", "/resume")


def test_whatever_changes_the_server_says_so_in_the_contract(keyed: LiveServer) -> None:
    """Reading is free; a POST or DELETE on such a path isn't."""
    changes = [o for o in keyed.services.contract.operations if o.method != "GET" and any(m in o.path for m in MARKS)]
    assert [o.path for o in changes if not o.changes_server] == []


# --- pages of other sites -------------------------------------------------------------------------

STRANGERS = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "https://evil.example", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "cross-site"},
    {"origin": "", "sec-fetch-site": "cross-site"},
)


@pytest.fixture(scope="module")
def open_server() -> Iterator[LiveServer]:
    with live_server(scripted, ByteText) as live:
        yield live


@pytest.mark.parametrize("headers", STRANGERS)
def test_pages_of_other_sites_are_kept_out_of_every_route(open_server: LiveServer, headers: dict[str, str]) -> None:
    url = open_server.url
    assert len(open_server.services.contract.operations) > 30
    with httpx.Client() as http:
        for one in open_server.services.contract.operations:
            path = one.path.replace("{", "").replace("}", "")
            # A body that a browser sends without asking first.
            plain = headers | {"content-type": "text/plain"}
            assert http.request(one.method, url + path, headers=plain, content=b"{}").status_code == 403, path
    for method, path in (("GET", "/nope"), ("PUT", CHAT)):
        assert httpx.request(method, url + path, headers=headers).status_code == 403
    assert httpx.options(url + CHAT, headers=headers).status_code == 204
    assert not open_server.engine.requests_seen


def test_own_pages_and_programs_are_not(open_server: LiveServer) -> None:
    url = open_server.url
    own: tuple[dict[str, str], ...] = (
        {},
        {"origin": url},
        {"origin": "http://LOCALHOST:99", "host": "localhost:99"},
        {"sec-fetch-site": "none"},
        {"origin": url, "sec-fetch-site": "same-origin"},
    )
    for headers in own:
        assert httpx.post(url + CHAT, json=BODY, headers=headers).status_code == 200, headers
        assert httpx.get(url + "/health", headers=headers).status_code == 200


def test_who_may_call_by_cors() -> None:
    listed = {"origin": "https://a.example"}
    with live_server(scripted, ByteText, settings={"server.cors_origins": ("https://a.example",)}) as live:
        reply = httpx.post(live.url + CHAT, json=BODY, headers=listed | {"sec-fetch-site": "cross-site"})
        assert reply.status_code == 200 and reply.headers["access-control-allow-credentials"] == "true"
        for headers in STRANGERS:
            assert httpx.get(live.url + "/health", headers=headers).status_code == 403
    with live_server(scripted, ByteText, settings={"server.cors_origins": ("*",)}) as live:
        for headers in STRANGERS:
            reply = httpx.post(live.url + CHAT, json=BODY, headers=headers)
            assert reply.status_code == 200 and "access-control-allow-credentials" not in reply.headers


def test_cors_for_everybody_is_never_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    origins = ("*", "https://a.example")
    with changing_server(monkeypatch, server__cors_origins=origins) as live:
        for headers in STRANGERS:
            assert httpx.post(live.url + CLOSE, headers=headers).status_code == 403
        listed = httpx.post(live.url + CLOSE, headers={"origin": "https://a.example"})
        assert (listed.status_code, listed.headers["access-control-allow-origin"]) == (200, "https://a.example")
        assert listed.headers["access-control-allow-credentials"] == "true"
        asked = {"access-control-request-method": "POST"}
        allowed = []
        for origin in ("https://evil.example", "https://a.example"):
            for path in (CLOSE, CHAT):
                reply = httpx.options(live.url + path, headers=asked | {"origin": origin})
                allowed.append(reply.headers.get("access-control-allow-origin"))
        assert allowed == [None, "*", "https://a.example", "https://a.example"]


def test_a_listed_origin_beside_the_star() -> None:
    cors = Cors(ServerSettings(cors_origins=("*", "https://a.example")))
    listed, other = (cors.headers(o, "GET", "") for o in ("https://a.example", "https://b.example"))
    assert listed["access-control-allow-origin"] == "https://a.example" and listed["vary"] == other["vary"] == "Origin"
    assert other["access-control-allow-origin"] == "*" and "access-control-allow-credentials" not in other


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True)
    return cert, key


def test_https(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    settings = {"server.ssl_certfile": cert, "server.ssl_keyfile": key}
    with live_server(scripted, ByteText, settings=settings) as live:
        url = live.url.replace("http://", "https://")
        context = ssl.create_default_context(cafile=cert)
        with httpx.Client(base_url=url, verify=context, timeout=20) as http:
            assert http.get("/health").json()["status"] == "ok"
            assert http.post(CHAT, json=BODY, headers={"origin": url}).status_code == 200
            with http.stream("POST", CHAT, json=BODY | {"stream": True}) as stream:
                assert stream.read().endswith(b"data: [DONE]\n\n")
            assert "<script" in http.get("/").text
        with pytest.raises(httpx.HTTPError):
            httpx.get(live.url + "/health", timeout=5)  # not encrypted
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/health", timeout=5)  # a certificate that nobody trusts


def test_files_of_a_certificate_that_cannot_be_used(certificate: tuple[str, str], tmp_path: Path) -> None:
    cert, key = certificate
    (tmp_path / "bad.pem").write_text("no certificate")
    for settings in (
        {"server.ssl_keyfile": key},
        {"server.ssl_certfile": str(tmp_path / "missing.pem")},
        {"server.ssl_certfile": str(tmp_path / "bad.pem")},
        {"server.ssl_certfile": cert},
        {"server.ssl_certfile": key, "server.ssl_keyfile": cert},
    ):
        with pytest.raises(UserFault), live_server(scripted, ByteText, settings=settings):
            pass


def test_handshakes_that_never_end_keep_nobody_out(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    settings = {"server.ssl_certfile": cert, "server.ssl_keyfile": key, "server.max_connections": 12}
    with live_server(scripted, ByteText, settings=settings) as live:
        import socket
        from urllib.parse import urlsplit

        where = urlsplit(live.url)
        assert where.hostname and where.port
        silent = [socket.create_connection((where.hostname, where.port)) for _ in range(30)]
        try:
            url = live.url.replace("http://", "https://")
            context = ssl.create_default_context(cafile=cert)
            assert httpx.get(url + "/health", verify=context, timeout=5).status_code == 200
        finally:
            for sock in silent:
                sock.close()


# --- priority -------------------------------------------------------------------------------------


def test_whose_priority_counts_against_other_keys() -> None:
    keys = {"server.api_key": ("k",), "server.admin_api_key": ("a",)}
    cases: tuple[tuple[dict[str, Any], str, bool], ...] = (
        ({}, "", True),
        ({"server.api_key": ("k",)}, "k", False),
        (keys, "k", False),
        (keys, "a", True),
        ({"server.admin_api_key": ("a",)}, "", False),
        ({"server.admin_api_key": ("a",)}, "a", True),
    )
    for settings, key, outranks in cases:
        with live_server(scripted, ByteText, settings=settings) as live:
            headers = bearer(key) if key else {}
            assert httpx.post(live.url + CHAT, json=BODY | {"priority": -3}, headers=headers).status_code == 200
            seen = live.engine.requests_seen[-1]
            assert seen.outranks == outranks, (settings, key)


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://a]", "null", "", "://"])
def test_an_origin_that_is_no_url_is_another_site(origin: str) -> None:
    with pytest.raises(Forbidden):
        check_browser({"origin": origin, "host": "localhost:8080"}, Cors(ServerSettings()), changes_server=False)
