"""server.habits = llama-server: its errors and small ways, and only then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from imp_server.api.headers import Cors
from imp_server.api.model_text_side import ModelTextSide
from imp_server.api.slot_actions import file_of
from imp_server.config import Config
from imp_server.config.serving import ServerSettings
from imp_server.core.owner import NOBODY, owner_of

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT
from tests.toy import byte_model

SETTINGS = {"server.habits": "llama-server", "server.slots": False, "metrics.enabled": False, "model.max_seq_len": 512}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server(scripted, ByteText, check_replies=False, settings=SETTINGS) as live:
        yield live.url


@pytest.fixture(scope="module")
def usual() -> Iterator[str]:
    with live_server(scripted, ByteText) as live:
        yield live.url


def error(reply: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = reply.json()["error"]
    assert found["code"] == reply.status_code
    return found


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", CHAT, {"messages": 7}, 400, "invalid_request_error"),
        ("POST", "/completion", {}, 400, "invalid_request_error"),
        ("GET", "/nowhere", None, 404, "not_found_error"),
        ("GET", "/v1/nowhere", None, 404, "not_found_error"),
        ("GET", "/slots", None, 501, "not_supported_error"),
        ("GET", "/metrics", None, 501, "not_supported_error"),
    ],
)
def test_errors(url: str, method: str, path: str, body: Any, status: int, kind: str) -> None:
    reply = httpx.request(method, url + path, json=body)
    assert reply.status_code == status and set(error(reply)) == {"code", "message", "type"}
    assert error(reply)["type"] == kind


def test_a_prompt_that_is_too_long_says_by_how_much(url: str) -> None:
    reply = httpx.post(url + CHAT, json={**BODY, "messages": [{"role": "user", "content": "x" * 9000}]})
    found = error(reply)
    assert found["type"] == "exceed_context_size_error" and found["n_prompt_tokens"] > found["n_ctx"] > 0


def test_replies(url: str, usual: str) -> None:
    there = [httpx.post(u + CHAT, json=BODY).json()["system_fingerprint"] for u in (url, usual)]
    assert there[0].startswith("b") and there[1].startswith("fp_imp")
    firsts = []
    for each in (url, usual):
        with httpx.stream("POST", each + CHAT, json={**BODY, "stream": True}) as stream:
            firsts.append(next(line for line in stream.iter_lines() if line.startswith("data:")))
    assert '"content":null' in firsts[0] and '"content":""' in firsts[1]


def test_a_schema_needs_no_name_there(url: str, usual: str) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"const": "Hello wörld"}}}
    replies = [httpx.post(each + CHAT, json={**BODY, "response_format": form}) for each in (url, usual)]
    assert [reply.status_code for reply in replies] == [200, 400]


def test_a_chat_without_messages_is_taken_there(tuned: LiveServer, usual: str) -> None:
    body = {**BODY, "messages": [], "max_tokens": 5}
    assert httpx.post(tuned.url + "/v1/messages", json=body).json()["type"] == "message"
    assert httpx.post(usual + "/v1/messages", json=body).status_code == 400


def test_messages_have_no_timings_there(url: str, usual: str) -> None:
    replies = [httpx.post(each + "/v1/messages", json={**BODY, "max_tokens": 5}).json() for each in (url, usual)]
    assert ["timings" in reply for reply in replies] == [False, True]


def test_other_dialects_keep_their_shapes(url: str) -> None:
    reply = httpx.post(url + "/v1/messages", json={})
    assert reply.json()["type"] == "error"


def test_both_routes_answer_by_default(usual: str) -> None:
    assert [httpx.get(usual + path).status_code for path in ("/slots", "/metrics")] == [200, 200]


# --- with a server's settings ---------------------------------------------------------------------

HABITS = {"server.habits": "llama-server", "server.model_names": "any", "server.prefill_assistant": True}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def tuned() -> Iterator[LiveServer]:
    settings = {
        **HABITS,
        "server.ui": False,
        "server.props": True,
        "server.tools": False,
        "server.most_tokens": 5,
        "server.cors_origins": ("*", "localhost"),
        "server.cors_methods": ("GET", "POST", "DELETE", "OPTIONS"),
        "server.cors_headers": ("*",),
        "server.cors_credentials": "on",
        "prefix_cache.slots_path": "/nowhere/at/all",
    }
    with live_server(scripted, byte_model_side, settings=settings) as live:
        yield live


def byte_model_side() -> ModelTextSide:
    config = Config.of({"server.habits": "llama-server", "server.most_tokens": 5})
    return ModelTextSide(byte_model(config=config))


def test_no_page(tuned: LiveServer) -> None:
    assert [httpx.get(tuned.url + path).status_code for path in ("/", "/docs", "/health")] == [404, 404, 200]


def test_props_can_be_posted_where_that_is_on(tuned: LiveServer, url: str) -> None:
    assert httpx.post(tuned.url + "/props", json={}).json() == {"success": True}
    refused = httpx.post(url + "/props", json={})
    assert error(refused)["type"] == "not_supported_error"
    told = [httpx.get(each + "/props").json() for each in (tuned.url, url)]
    assert [(t["endpoint_props"], t["ui"], t["endpoint_slots"]) for t in told] == [
        (True, False, True),
        (False, True, False),
    ]


def test_no_tools_without_jinja(tuned: LiveServer) -> None:
    assert error(httpx.post(tuned.url + CHAT, json={**BODY, "tools": [TOOL]}))["code"] == 400
    assert httpx.post(tuned.url + CHAT, json={**BODY, "tools": []}).status_code == 200


def test_verbose(tuned: LiveServer, usual: str) -> None:
    told = httpx.post(tuned.url + CHAT, json={**BODY, "verbose": True}).json()["__verbose"]
    assert "hi" in told["prompt"] and told["content"] and told["generation_settings"]["n_predict"] == 5
    with httpx.stream("POST", tuned.url + CHAT, json={**BODY, "verbose": True, "stream": True}) as stream:
        chunks = [line for line in stream.iter_lines() if "__verbose" in line]
    assert len(chunks) == 1
    assert "__verbose" not in httpx.post(tuned.url + CHAT, json=BODY).json()
    assert "__verbose" not in httpx.post(usual + CHAT, json={**BODY, "verbose": True}).json()
    with live_server(scripted, ByteText, settings={**HABITS, "server.verbose_replies": True}) as live:
        assert "__verbose" in httpx.post(live.url + CHAT, json=BODY).json()
        assert "__verbose" not in httpx.post(live.url + CHAT, json={**BODY, "verbose": False}).json()


def test_the_cap_of_tokens(tuned: LiveServer) -> None:
    limits = []
    for more in ({}, {"max_tokens": 3}, {"max_tokens": 9}, {"max_tokens": -1}):
        httpx.post(tuned.url + CHAT, json={**BODY, **more})
        limits.append(tuned.engine.requests_seen[-1].plan.max_tokens)
    assert limits == [5, 3, 5, 5]
    settings = httpx.post(tuned.url + "/completion", json={"prompt": "a", "n_predict": 64}).json()[
        "generation_settings"
    ]
    assert settings["n_predict"] == 5


ASSISTANT = {"role": "assistant", "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "ill"}]}


def test_a_trailing_assistant_message_is_gone_on_with(tuned: LiveServer, usual: str) -> None:
    messages = [*BODY["messages"], ASSISTANT]
    prompts = [httpx.post(tuned.url + "/apply-template", json={"messages": messages} | more).json()["prompt"]
               for more in ({}, {"continue_final_message": False})]  # fmt: skip
    assert prompts[0].endswith("Wh\n\nill") and not prompts[1].endswith("ill")
    refused = httpx.post(tuned.url + CHAT, json={**BODY, "messages": [*messages, ASSISTANT]})
    assert error(refused)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("origin", "allowed"), [("http://a.example", True), ("http://localhost:3000", True), ("http://[::1]:1", True)]
)
def test_preflights(tuned: LiveServer, origin: str, allowed: bool) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x"}
    reply = httpx.options(tuned.url + "/completions", headers=asked)
    assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == origin
    assert reply.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert reply.headers["access-control-allow-headers"] == "*"
    assert reply.headers["access-control-allow-credentials"] == "true"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://127.0.0.1:3000", True),
        ("http://[::1]", True),
        ("https://localhost:1", True),
        ("http://notlocalhost", False),
        ("http://localhost.evil.com", False),
        ("http://evil.com", False),
        ("null", False),
        ("file://localhost", False),
        ("http://127.0.0.1.evil.com", False),
    ],
)
def test_loopback_origins(origin: str, allowed: bool) -> None:
    cors = Cors(ServerSettings(cors_origins=("localhost",), cors_credentials="off"))
    assert cors.allows(origin, listed_only=True) is allowed
    assert ("access-control-allow-origin" in cors.headers(origin, "GET", "")) is allowed
    assert "access-control-allow-credentials" not in cors.headers(origin, "GET", "")


def test_what_changes_the_server_is_not_for_every_origin(tuned: LiveServer) -> None:
    reply = httpx.post(tuned.url + "/props", json={}, headers={"origin": "http://a.example"})
    assert reply.status_code == 403 and "access-control-allow-origin" not in reply.headers


def test_embeddings_only() -> None:
    with live_server(scripted, ByteText, check_replies=False, settings={"server.only_embeddings": True}) as live:
        assert httpx.post(live.url + CHAT, json=BODY).status_code == 501
        assert httpx.post(live.url + "/v1/embeddings", json={"model": "m", "input": "a"}).status_code != 501
        assert httpx.post(live.url + "/tokenize", json={"content": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("action", "body", "status"),
    [
        ("restore", {"filename": "a.bin"}, 200),
        ("save", {"filename": "a.bin"}, 400),
        ("erase", None, 200),
        ("save", {}, 400),
        ("save", {"filename": "../a"}, 400),
        ("save", {"filename": "a/b"}, 400),
        ("save", {"filename": ".a"}, 400),
        ("save", {"filename": "a\u0000"}, 400),
        ("save", {"filename": "x" * 201}, 400),
        ("dance", {"filename": "a"}, 400),
    ],
)
def test_slot_actions(tuned: LiveServer, action: str, body: Any, status: int) -> None:
    reply = httpx.post(f"{tuned.url}/slots/1?action={action}", json=body)
    assert reply.status_code == status, reply.text
    if action == "restore":
        assert reply.json() == {
            "id_slot": 1, "filename": "a.bin", "n_restored": 12, "n_read": 3456, "timings": {"restore_ms": 1.5},
        }  # fmt: skip
        assert tuned.engine.slot_actions[-1].path == "/nowhere/at/all/everybody/a.bin"


def test_slot_actions_elsewhere(tuned: LiveServer, url: str) -> None:
    assert error(httpx.post(url + "/slots/0?action=erase"))["type"] == "not_supported_error"
    assert error(httpx.post(tuned.url + "/slots/99?action=erase"))["code"] == 400


def test_files_of_two_keys_are_apart() -> None:
    paths = {file_of("/f", owner, "x") for owner in (NOBODY, owner_of("a"), owner_of("b"))}
    assert len(paths) == 3 and all(path.name == "x" and path.parent.parent == Path("/f") for path in paths)


def test_a_reply_that_was_cut_ends_as_there(tuned: LiveServer, usual: str) -> None:
    ends = []
    for each in (tuned.url, usual):
        body = {"model": "m", "input": "hi", "max_output_tokens": 3, "stream": True}
        with httpx.stream("POST", each + "/v1/responses", json=body) as stream:
            lines = [line for line in stream.iter_lines() if line.startswith("data:")]
        ends.append(next(json.loads(line[5:]) for line in reversed(lines) if "[DONE]" not in line))
    assert [end["type"] for end in ends] == ["response.completed", "response.incomplete"]
    assert ends[0]["response"]["status"] == "incomplete" and ends[0]["timings"]
