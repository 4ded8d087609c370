"""Keys, ids, CORS, methods: what every route does alike."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from imp_server.api.auth import KeyRing, keys_from_file
from imp_server.api.headers import sanitised_id
from imp_server.api.server import bind
from imp_server.config.serving import ServerSettings
from imp_server.core import ConfigError, Unauthorized, UserFault
from imp_server.engine.client.scripted import ScriptGate

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import LiveServer, live_server

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


# --- request ids --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ("abc-123", "abc-123"),
        ("x" * 128, "x" * 128),
        ("x" * 129, "x" * 128 + "..."),
        ("tab\tand \u00fc", "tab.and ."),
    ],
)
def test_ids_are_sanitised(sent: str, echoed: str) -> None:
    assert sanitised_id(sent) == echoed


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/nope", "/v1/models/nope"])
def test_the_client_id_comes_back_everywhere(http: httpx.Client, path: str) -> None:
    assert http.get(path, headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"


def test_the_client_id_comes_back_on_generations_and_errors(http: httpx.Client) -> None:
    headers = {"x-request-id": "mine"}
    for body in (BODY, {**BODY, "stream": True}, {}):
        assert http.post(CHAT, json=body, headers=headers).headers["x-request-id"] == "mine"


def test_ids_without_one_from_the_client(http: httpx.Client) -> None:
    assert "x-request-id" not in http.get("/health").headers
    reply = http.post(CHAT, json=BODY)
    assert reply.headers["x-request-id"] == reply.json()["id"]
    first, second = (http.get("/v1/models").headers["x-request-id"] for _ in range(2))
    assert first != second


# --- keys ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[LiveServer]:
    with live_server(scripted, ByteText, settings={"server.api_key": ("one", "two")}) as live:
        yield live


def headers_of(kind: str, key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if kind == "bearer" else {"x-api-key": key}


@pytest.mark.parametrize("kind", ["bearer", "x-api-key"])
def test_every_key_opens_every_route(locked: LiveServer, kind: str) -> None:
    for key in ("one", "two"):
        assert httpx.get(locked.url + "/v1/models", headers=headers_of(kind, key)).status_code == 200
        assert httpx.post(locked.url + CHAT, json=BODY, headers=headers_of(kind, key)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}, {"x-api-key": "on"}, {"x-api-key": "onee"}],
)
def test_wrong_keys(locked: LiveServer, headers: dict[str, str]) -> None:
    for path in ("/v1/models", "/openapi.json"):
        response = httpx.get(locked.url + path, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    # The key is looked at before the body is.
    assert httpx.post(locked.url + CHAT, content=b"{", headers=headers).status_code == 401


def test_public_routes(locked: LiveServer) -> None:
    for path in ("/health", "/ready", "/", "/docs", "/ui/main.js"):
        assert httpx.get(locked.url + path).status_code == 200


def test_the_document_says_whether_keys_are_needed(locked: LiveServer, http: httpx.Client) -> None:
    document = httpx.get(locked.url + "/openapi.json", headers={"x-api-key": "one"}).json()
    assert document["paths"][CHAT]["post"]["security"]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in http.get("/openapi.json").json()["paths"][CHAT]["post"]


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\nalpha\n\n beta # for ci\n")
    assert keys_from_file(str(file)) == ("alpha", "beta")
    with live_server(scripted, ByteText, settings={"server.api_key_file": str(file)}) as live:
        assert httpx.get(live.url + "/v1/models", headers={"x-api-key": "beta"}).status_code == 200
        assert httpx.get(live.url + "/v1/models").status_code == 401
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no key"):
        keys_from_file(str(file))
    with pytest.raises(ConfigError, match="can't read"):
        keys_from_file(str(tmp_path / "gone"))


def test_keys_beyond_ascii() -> None:
    ring = KeyRing(["schlüssel"])
    with pytest.raises(Unauthorized):
        ring.check({"x-api-key": "\udcff"})


# --- methods and paths --------------------------------------------------------------------------


def test_wrong_method(http: httpx.Client) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH", "TRACE"):
        response = http.request(method, CHAT)
        assert response.status_code == 405
        assert response.headers["allow"] == "POST, OPTIONS"
        assert response.json()["error"]["code"] == "method_not_allowed"
    assert http.post("/v1/models").headers["allow"] == "GET, HEAD, OPTIONS"


def test_a_path_of_the_contract_is_no_parameter_of_another(http: httpx.Client) -> None:
    """/v1/responses/input_tokens is no response with the id input_tokens."""
    response = http.get("/v1/responses/input_tokens")
    assert (response.status_code, response.headers["allow"]) == (405, "POST, OPTIONS")
    assert http.options("/v1/responses/input_tokens").headers["allow"] == "POST, OPTIONS"
    assert http.get("/v1/responses/resp_1").status_code == 404


def test_unknown_path(http: httpx.Client) -> None:
    for path in ("/index.html", "/v2/chat", "/v1/chat/completions/x/y", "/%00", "/caf%C3%A9", "/" + "a" * 5000):
        response = http.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["message"].startswith("Unknown endpoint: GET /")
        assert len(response.json()["error"]["message"]) < 200


def test_head_is_get_without_a_body(http: httpx.Client) -> None:
    head, get = http.head("/v1/models"), http.get("/v1/models")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(get.content))


def test_options(http: httpx.Client) -> None:
    response = http.options(CHAT)
    assert (response.status_code, response.headers["allow"]) == (204, "POST, OPTIONS")
    assert http.options("/nope").status_code == 204


# --- CORS ---------------------------------------------------------------------------------------

PREFLIGHT = {
    "origin": "https://a.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "x-stainless-os,authorization",
}


def cors(response: httpx.Response) -> dict[str, str]:
    return {k: v for k, v in response.headers.items() if k.startswith("access-control") or k == "vary"}


def test_cors_is_off_by_default(http: httpx.Client) -> None:
    assert not cors(http.options(CHAT, headers=PREFLIGHT))
    assert not cors(http.post(CHAT, json=BODY, headers={"origin": "https://a.example"}))


def test_cors_is_exact() -> None:
    with live_server(scripted, ByteText, settings={"server.cors_origins": ("https://a.example",)}) as live:
        preflight = cors(httpx.options(live.url + CHAT, headers=PREFLIGHT))
        assert preflight["access-control-allow-origin"] == "https://a.example"
        assert preflight["access-control-allow-headers"] == "x-stainless-os,authorization"
        assert "POST" in preflight["access-control-allow-methods"]
        assert preflight["vary"] == "Origin"
        for body in (BODY, {**BODY, "stream": True}, {}):
            real = cors(httpx.post(live.url + CHAT, json=body, headers={"origin": "https://a.example"}))
            assert real["access-control-allow-origin"] == "https://a.example"
        for other in ("https://a.example.evil", "http://a.example", "null"):
            refused = cors(httpx.post(live.url + CHAT, json=BODY, headers={"origin": other}))
            assert refused == {"vary": "Origin"}
        assert cors(httpx.get(live.url + "/health")) == {"vary": "Origin"}


def test_cors_for_everybody() -> None:
    with live_server(scripted, ByteText, settings={"server.cors_origins": ("*",)}) as live:
        found = cors(httpx.get(live.url + "/health", headers={"origin": "https://x.example"}))
        assert found["access-control-allow-origin"] == "*"
        assert "vary" not in found


# --- the rest -----------------------------------------------------------------------------------


def test_one_log_line_per_refusal(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="imp_server.api"):
        http.post(CHAT, json={**BODY, "temperature": 9})
        http.get("/v1/models/other%0Aline")
    first, second = [r.getMessage() for r in caplog.records if r.name == "imp_server.api.visit"]
    assert first.startswith(f"HTTP 400 POST {CHAT}: ")
    assert second.startswith("HTTP 404 GET /v1/models/{model}: model_not_found ")


def test_no_prompt_in_the_log(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    secret = [{"role": "user", "content": "zanzibar"}]
    with caplog.at_level(logging.DEBUG):
        http.post(CHAT, json={"model": "m", "messages": secret})
        http.post(CHAT, json={"model": "m", "messages": secret, "temperature": 9})
        http.post(CHAT, json={"model": "m", "messages": [{"role": "user", "content": ["zanzibar"]}]})
    assert "zanzibar" not in caplog.text


def test_the_document(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert CHAT in document["paths"]


def test_a_fault_of_ours_has_the_dialects_shape(server: LiveServer, http: httpx.Client) -> None:
    host = server.services.models.find("m")
    text, host.text = host.text, Broken()  # type: ignore[assignment]
    try:
        openai = http.post(CHAT, json=BODY)
        anthropic = http.post("/v1/messages", json={**BODY, "max_tokens": 3})
    finally:
        host.text = text
    assert openai.status_code == anthropic.status_code == 500
    assert openai.json()["error"]["code"] == "internal_error"
    assert openai.json()["error"]["type"] == "server_error"
    assert anthropic.json()["type"] == "error"
    assert anthropic.json()["error"]["type"] == "api_error"
    assert anthropic.json()["request_id"] == anthropic.headers["request-id"]
    assert "kaput" not in openai.text + anthropic.text


class Broken:
    def prepare_chat(self, _request: Any) -> Any:
        raise RuntimeError("kaput")


def test_a_taken_port() -> None:
    (sock,) = bind(ServerSettings(port=0))
    try:
        with pytest.raises(UserFault, match="choose another --port"):
            bind(ServerSettings(port=sock.getsockname()[1]))
    finally:
        sock.close()


def test_models(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert [m["id"] for m in listed["data"]] == ["m"]
    one: dict[str, Any] = http.get("/v1/models/m").json()
    assert one == listed["data"][0]
    assert one["max_model_len"] == one["meta"]["n_ctx_train"] == 8192
    assert http.get("/v1/models?limit=0").status_code == 400
    assert http.get("/v1/models?limit=5&after_id=m").json()["data"] == []


def test_tokenizer(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"content": "hé"}).json() == {"tokens": [104, 195, 169]}
    assert http.post("/tokenize", json={"prompt": "h"}).json() == {"tokens": [104]}
    pieces = http.post("/tokenize", json={"content": "hé", "with_pieces": True}).json()["tokens"]
    assert pieces == [{"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert http.post("/detokenize", json={"tokens": [104, 195, 169]}).json() == {"content": "hé", "prompt": "hé"}


# --- the log's line of a request ----------------------------------------------------------------


def test_a_request_that_succeeds_is_one_line(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="imp_server.api"):
        http.post(CHAT, json=BODY, headers={"x-request-id": "mine"})
        http.post(CHAT, json={**BODY, "stream": True, "n": 2})
        http.get("/health")
    whole, streamed = [record for record in caplog.records if record.name == "imp_server.api.visit"]
    fields = vars(whole)
    assert (fields["method"], fields["path"], fields["status"], fields["model"]) == ("POST", CHAT, 200, "m")
    assert (fields["client"], fields["finish"]) == ("127.0.0.1", "stop")
    assert fields["prompt_tokens"] == len("user: hi\n") and fields["cached_tokens"] == 0
    assert fields["completion_tokens"] == len("Hello wörld".encode()) + 1
    assert 0 < fields["first_token_ms"] <= fields["duration_ms"] and fields["tokens_per_s"] > 0
    line = whole.getMessage()
    assert line.startswith(f"HTTP 200 POST {CHAT} [client=127.0.0.1 model=m in=9 cached=0 out=13 first=")
    assert "finish=stop" in line and "Hello" not in line
    assert "mine" not in line and " id=req_" not in line and " id=" in streamed.getMessage()  # no word of a client's
    assert vars(streamed)["completion_tokens"] == 2 * fields["completion_tokens"]


def test_a_client_that_left_is_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    from tests.api.test_streams import gate, new_engine, until

    with live_server(new_engine, ByteText) as live, caplog.at_level(logging.INFO, logger="imp_server.api"):
        hold = gate(live)
        live.engine.answer_with(lambda _r, _c: [104, ScriptGate(hold)])
        with httpx.stream("POST", live.url + CHAT, json={**BODY, "stream": True}) as stream:
            next(stream.iter_lines())
        until(lambda: any(record.name == "imp_server.api.visit" for record in caplog.records), 5)


def test_no_word_of_a_client_is_a_field(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="imp_server.api"):
        http.request("ZANZIBAR", "/zanzibar?zanzibar")
        http.post(CHAT, json={**BODY, "model": "zanzibar"})
    for record in caplog.records:
        fields = {k: v for k, v in vars(record).items() if k in ("path", "model", "client", "finish")}
        assert "zanzibar" not in str(fields)
