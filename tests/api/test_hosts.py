"""DNS rebinding: a local server without a key answers to names of its own only, and the refusal names the flag."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from imp_server.api.hosts import HostCheck, host_headers
from imp_server.config.serving import ServerSettings
from imp_server.core import Forbidden

from tests.api.live_server import live_server

OWN = socket.gethostname()


def allows(check: HostCheck, host: str) -> bool:
    try:
        check.check([host])
    except Forbidden:
        return False
    return True


GOOD = [
    "127.0.0.1",
    "127.0.0.1:8080",
    "[::1]:8080",
    "[::1]",
    "192.168.1.7:80",
    "localhost",
    "LOCALHOST:8080",
    "localhost.",
    "app.localhost:3000",
    OWN,
    f"{OWN}:8080",
    "",
]
BAD = [
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "notlocalhost",
    "127.0.0.1.evil.example",
    "127.0.0.1.nip.example:8080",
    "localhost:8080.evil.example@evil.example",
    "evil.example.",
    "1.2.3",
]


def test_which_names_are_its_own() -> None:
    check = HostCheck(ServerSettings(), has_keys=False)
    assert [host for host in GOOD if not allows(check, host)] == []
    assert [host for host in BAD if allows(check, host)] == []


@pytest.mark.parametrize(
    ("hosts", "has_keys", "is_on"),
    [
        (("127.0.0.1",), False, True),
        (("::1", "localhost"), False, True),
        (("127.0.0.1", "unix:/tmp/imp.sock"), False, True),
        (("127.0.0.5",), False, True),
        (("0.0.0.0",), False, False),
        (("127.0.0.1", "192.168.1.7"), False, False),
        (("::",), False, False),
        (("unix:/tmp/imp.sock",), False, False),
        (("127.0.0.1",), True, False),
    ],
)
def test_only_where_whoever_reaches_it_is_trusted(hosts: tuple[str, ...], has_keys: bool, is_on: bool) -> None:
    assert HostCheck(ServerSettings(host=hosts), has_keys=has_keys).is_on == is_on


def test_names_that_the_operator_allows() -> None:
    check = HostCheck(ServerSettings(allowed_hosts=("llm.example", ".corp.example", "*.dev.example")), has_keys=False)
    for host in ("llm.example:80", "LLM.example", "a.corp.example", "a.b.dev.example", "localhost"):
        assert allows(check, host), host
    for host in ("x.llm.example", "corp.example.evil", "evil.example", "notcorp.example"):
        assert not allows(check, host), host
    assert not HostCheck(ServerSettings(allowed_hosts=("*",)), has_keys=False).is_on


def test_every_host_header_counts() -> None:
    check = HostCheck(ServerSettings(), has_keys=False)
    with pytest.raises(Forbidden):
        check.check(host_headers([(b"Host", b"evil.example"), (b"accept", b"*/*"), (b"host", b"localhost")]))
    check.check(host_headers([(b"accept", b"evil.example")]))


def test_a_name_that_no_terminal_should_see_is_shown_without_it() -> None:
    with pytest.raises(Forbidden) as caught:
        HostCheck(ServerSettings(), has_keys=False).check(["evil\x1b[2J\u202e" + "x" * 500])
    assert "\x1b" not in caught.value.message and "\u202e" not in caught.value.message
    assert len(caught.value.message) < 400


def test_a_request_of_a_strange_page() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with live_server(None) as live, httpx.Client(base_url=live.url, timeout=10) as http:
        strange = {"host": "evil.example"}
        for reply in (
            http.post("/v1/chat/completions", json=body, headers=strange),
            http.get("/v1/models", headers=strange),
            http.get("/health", headers=strange),
            http.get("/", headers=strange),
        ):
            assert reply.status_code == 403, reply.text
            assert "--allowed-hosts evil.example" in reply.json()["error"]["message"]
        anthropic = http.post("/v1/messages", json=body | {"max_tokens": 1}, headers=strange)
        assert anthropic.json()["type"] == "error" and anthropic.status_code == 403
        assert http.get("/v1/models").status_code == http.get("/v1/models", headers={"host": "localhost:1"}).status_code
    with live_server(None, settings={"server.api_key": ["k"]}) as live:
        reply = httpx.get(f"{live.url}/health", headers={"host": "llm.example"})
        assert reply.status_code == 200, "a key is what keeps strangers out there"
