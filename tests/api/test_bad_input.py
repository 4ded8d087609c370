"""Every kind of bad input gets its own 4xx in the dialect's shape, and the server goes on."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from typing import Any

import httpx
import pytest
from imp_server.api.body import decode_json, is_deeper
from imp_server.api.contract import load
from imp_server.core import InvalidJson
from imp_server.engine.client.scripted import ScriptedEngine
from imp_server.resources import data_folder

from tests.api.byte_text import ByteText
from tests.api.live_server import LiveServer, live_server

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
USER = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": USER, **fields}


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    found: dict[str, Any] = error
    return found


DEEP = b'{"model":"m","messages":' + b"[" * 100 + b"]" * 100 + b"}"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"hello", "Invalid JSON"),
        (b'{"model":', "Invalid JSON"),
        (b"{} {}", "trailing"),
        (b'{"temperature":NaN}', "Invalid JSON"),
        (b'{"temperature":Infinity}', "Invalid JSON"),
        (b'{"temperature":-Infinity}', "Invalid JSON"),
        (b'{"temperature":1e999}', "out of range"),
        (b'{"model":"\xff\xfe"}', "UTF-8"),
        (b'{"\xc3\x28":1}', "UTF-8"),
        (b'{"model":"\\ud800"}', "Invalid JSON"),
        (b'{"model":"\\udc00 x"}', "Invalid JSON"),
        (b'{"model":"a\x01b"}', "Invalid JSON"),
        (DEEP, "64 deep"),
        (b"[" * 100_000 + b"]" * 100_000, "64 deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "64 deep"),
    ],
)
def test_not_json(http: httpx.Client, body: bytes, says: str) -> None:
    error = refused(http.post(CHAT, content=body, headers=JSON), 400, "invalid_json")
    assert says in error["message"]


def test_broken_json_is_a_refusal_on_every_route(http: httpx.Client) -> None:
    routes = {(o.method, o.path) for o in load(data_folder("spec")).operations if "application/json" in o.body_pointers}
    assert len(routes) > 15
    for method, path in routes - {("POST", "/predict")}:  # that is there only where it is configured
        response = http.request(method, path.replace("{", "").replace("}", ""), content=b'{"a":', headers=JSON)
        is_tgi = path == "/" or path.startswith("/generate")
        assert response.status_code == (422 if is_tgi else 400), (path, response.text)
        assert "Invalid JSON" in response.text


@pytest.mark.parametrize("body", [b"[1,2]", b"42", b'"s"', b"null", b"true", b"1.5"])
def test_not_an_object(http: httpx.Client, body: bytes) -> None:
    error = refused(http.post(CHAT, content=body, headers=JSON), 400, "invalid_type")
    assert "object" in error["message"]


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ({"messages": USER}, "model", "missing_required_parameter"),
        ({"model": "", "messages": USER}, "model", "invalid_value"),
        ({"model": 3, "messages": USER}, "model", "invalid_type"),
        ({"model": "m"}, "messages", "missing_required_parameter"),
        (chat(messages=[]), "messages", "invalid_value"),
        (chat(messages="hi"), "messages", "invalid_type"),
        (chat(messages=["hi"]), "messages[0]", "invalid_type"),
        (chat(messages=[{"role": "user"}]), "messages[0].content", "missing_required_parameter"),
        (chat(messages=[{"content": "x"}]), "messages[0].role", "missing_required_parameter"),
        (chat(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "invalid_value"),
        (chat(messages=[*USER, {"role": "user", "content": 3}]), "messages[1].content", "invalid_type"),
        (chat(messages=[{"role": "user", "content": None}]), "messages[0].content", "invalid_type"),
        (chat(messages=[{"role": "user", "content": []}]), "messages[0].content", "invalid_value"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            chat(messages=[{"role": "user", "content": [{"type": "smell"}]}]),
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (chat(temperature="hot"), "temperature", "invalid_type"),
        (chat(temperature=2.1), "temperature", "invalid_value"),
        (chat(temperature=[]), "temperature", "invalid_type"),
        (chat(top_p=-0.1), "top_p", "invalid_value"),
        (chat(max_tokens=0), "max_tokens", "invalid_value"),
        (chat(max_tokens=1.5), "max_tokens", "invalid_type"),
        (chat(max_completion_tokens=-2), "max_completion_tokens", "invalid_value"),
        (chat(n=0), "n", "invalid_value"),
        (chat(n=1000), "n", "invalid_value"),
        (chat(seed=2**70), "seed", "invalid_value"),
        (chat(stream="yes"), "stream", "invalid_type"),
        (chat(stream_options={"include_usage": 1}), "stream_options.include_usage", "invalid_type"),
        (chat(stop=[1]), "stop[0]", "invalid_type"),
        (chat(logprobs=3), "logprobs", "invalid_type"),
        (chat(logprobs=True, top_logprobs=21), "top_logprobs", "invalid_value"),
        (chat(logit_bias={"abc": 1}), "logit_bias", "invalid_value"),
        (chat(logit_bias={"-5": 1}), "logit_bias", "invalid_value"),
        (chat(logit_bias={"7": 101}), "logit_bias.7", "invalid_value"),
        (chat(logit_bias={"7": "1"}), "logit_bias.7", "invalid_type"),
        (chat(logit_bias=[1]), "logit_bias[0]", "invalid_type"),
        (chat(logit_bias="5"), "logit_bias", "invalid_type"),
        (chat(logit_bias={"300": 1}), "logit_bias", "unknown_token"),
        (chat(repetition_penalty=0), "repetition_penalty", "invalid_value"),
        (chat(speculative="yes"), "speculative", "invalid_type"),
        (chat(speculative={"mtp_k": 99}), "speculative.mtp_k", "invalid_value"),
        (chat(session_id="no spaces"), "session_id", "invalid_value"),
        (chat(tools=[3]), "tools[0]", "invalid_type"),
        (chat(tools=[{"type": "function"}]), "tools[0].function", "missing_required_parameter"),
        (chat(tool_choice="maybe"), "tool_choice", "invalid_value"),
        (chat(tool_choice="required"), "tool_choice", "unknown_tool"),
        (
            chat(tool_choice={"type": "function", "function": {"name": "f"}}),
            "tool_choice.function.name",
            "unknown_tool",
        ),
        (chat(response_format={"type": "xml"}), "response_format.type", "invalid_value"),
        (
            chat(response_format={"type": "json_schema", "json_schema": {"name": "a"}}),
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (chat(lora="none"), "lora", "lora_not_loaded"),
    ],
)
def test_wrong_field(http: httpx.Client, body: Any, path: str, code: str) -> None:
    error = refused(http.post(CHAT, json=body), 400, code)
    assert error["param"] == path
    if code != "unknown_token" and code != "lora_not_loaded":
        assert f'"{path}"' in error["message"]


def test_ranges_are_told(http: httpx.Client) -> None:
    for body, says in (
        (chat(speculative={"mtp_k": 99}), '"speculative.mtp_k" must be within 0..16'),
        (chat(temperature=3), '"temperature" must be within 0..2'),
        (chat(n=9), '"n" must be within 1..8'),
    ):
        assert http.post(CHAT, json=body).json()["error"]["message"] == says


NULLS = [
    *("seed", "temperature", "top_p", "n", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs"),
    *("stream", "stop", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "response_format"),
    *("stream_options", "logit_bias", "metadata", "store", "user", "reasoning_effort", "speculative", "lora"),
]


def test_choices_are_told_as_json(http: httpx.Client) -> None:
    response = http.post("/v1/responses", json={"model": "m", "input": "hi", "truncation": True})
    assert refused(response, 400, "invalid_value")["message"] == '"truncation" must be one of "auto", "disabled"'


def test_null_means_absent(http: httpx.Client) -> None:
    for name in NULLS:
        assert http.post(CHAT, json=chat(**{name: None})).status_code == 200, name
    everything = http.post(CHAT, json=chat(**dict.fromkeys(NULLS)))
    assert everything.status_code == 200
    assert everything.json()["choices"][0]["message"]["content"] == "Hello wörld"


def test_unknown_fields_are_ignored(http: httpx.Client) -> None:
    body = chat(client_metadata={"a": [None]}, what="ever", messages=[{**USER[0], "extra": 1}])
    assert http.post(CHAT, json=body).status_code == 200
    assert http.post(f"{CHAT}?beta=true&x=1", json=chat()).status_code == 200


@pytest.mark.parametrize("media", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_wrong_media_type(http: httpx.Client, media: str | None) -> None:
    headers = {"content-type": media} if media else {}
    refused(http.post(CHAT, content=json.dumps(chat()).encode(), headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "application/vnd.x+json", "APPLICATION/JSON"])
def test_right_media_types(http: httpx.Client, media: str) -> None:
    body = json.dumps(chat()).encode()
    assert http.post(CHAT, content=body, headers={"content-type": media}).status_code == 200


def test_wrong_charset(http: httpx.Client) -> None:
    headers = {"content-type": "application/json; charset=utf-16"}
    refused(http.post(CHAT, content=b"{}", headers=headers), 415, "unsupported_media_type")


def test_body_over_the_cap() -> None:
    with live_server(lambda: ScriptedEngine(ByteText().vocabulary), ByteText, settings={"server.max_body_mib": 1}) as s:
        big = json.dumps(chat(messages=[{"role": "user", "content": "x" * 2**20}])).encode()
        error = refused(httpx.post(s.url + CHAT, content=big, headers=JSON), 413, "payload_too_large")
        assert "max-body-mib" in error["message"]

        def pieces() -> Any:  # no content-length: counted while it streams in
            for _ in range(64):
                yield b"x" * 2**16

        refused(httpx.post(s.url + CHAT, content=pieces(), headers=JSON), 413, "payload_too_large")
        assert httpx.get(s.url + "/health").status_code == 200


def test_unknown_model_everywhere(http: httpx.Client) -> None:
    for name in ("gpt-4", "/etc/passwd", "../m", "./m.gguf", "org/m.gguf", "a/b/c", "M", "m "):
        error = refused(http.post(CHAT, json={**chat(), "model": name}), 404, "model_not_found")
        assert "not found" in error["message"]
        refused(http.post("/tokenize", json={"content": "x", "model": name}), 404, "model_not_found")
    refused(http.get("/v1/models/nope"), 404, "model_not_found")
    refused(http.get("/v1/models/org%2Fmodel"), 404, "model_not_found")


def test_prompt_beyond_the_context(http: httpx.Client) -> None:
    long = [{"role": "user", "content": "x" * 9000}]
    for stream in (False, True):
        response = http.post(CHAT, json=chat(messages=long, stream=stream))
        error = refused(response, 400, "context_length_exceeded")
        assert "maximum context length is 8192 tokens" in error["message"]
        assert error["param"] == "messages"


def test_media_parts_are_named(http: httpx.Client) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    user = {"role": "user", "content": [{"type": "text", "text": "see"}, image]}
    error = refused(http.post(CHAT, json=chat(messages=[user])), 400, "vision_unavailable")
    assert error["param"] == "messages[0].content[1]"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [*USER, {"role": "assistant", "tool_calls": [call]}]
    tool = {"role": "tool", "tool_call_id": "c", "content": [image]}
    error = refused(http.post(CHAT, json=chat(messages=[*history, tool])), 400, "vision_unavailable")
    assert error["param"] == "messages[2].content[0]"


@pytest.mark.parametrize("body", [{"content": 3}, {"content": {}}, {"content": [None]}, {"prompt": [-1]}])
def test_tokenize_needs_text(http: httpx.Client, body: Any) -> None:
    assert http.post("/tokenize", json=body).status_code == 400


@pytest.mark.parametrize("body", [{}, {"tokens": "x"}, {"tokens": [-1]}, {"tokens": [0.5]}, {"tokens": [99999]}])
def test_detokenize_needs_known_ids(http: httpx.Client, body: Any) -> None:
    assert http.post("/detokenize", json=body).status_code == 400


def test_without_a_model_validation_comes_first() -> None:
    with live_server(None) as s:
        refused(httpx.post(s.url + CHAT, json=chat(temperature=9)), 400, "invalid_value")
        refused(httpx.post(s.url + CHAT, json=chat()), 503, "no_model")
        refused(httpx.post(s.url + "/tokenize", json={"content": 3}), 400, "invalid_type")
        refused(httpx.post(s.url + "/tokenize", json={"content": "x"}), 503, "no_model")
        assert httpx.get(s.url + "/v1/models").json()["data"] == []
        refused(httpx.get(s.url + "/v1/models/m"), 404, "model_not_found")
        assert httpx.get(s.url + "/health").json()["model_loaded"] is False
        ready = httpx.get(s.url + "/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "no_model")


def test_garbage_instead_of_http(server: LiveServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    connection.request("POST", CHAT, body=b"\xff" * 100, headers={"content-length": "100"})
    assert connection.getresponse().status == 415
    connection.close()
    assert httpx.get(server.url + "/health").status_code == 200


def raw(server: LiveServer, head: bytes) -> int:
    """The status that a raw request gets; 0 for a connection closed without an answer."""
    answer = raw_answer(server, head)
    return int(answer.split()[1]) if answer else 0


def raw_answer(server: LiveServer, head: bytes) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        sock.sendall(head + b"\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = b""
        while part := sock.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize("head", [b"\x16\x03\x01\x02\x00 not http", b"FOO /health HTTP/1.1", b"GET / HTTP/1.1\r\na b"])
def test_what_is_no_http_gets_a_400_in_the_shape_of_errors(server: LiveServer, head: bytes) -> None:
    answer = raw_answer(server, head)
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 400 ") and b"\r\nx-request-id: req_" in top and b"application/json" in top
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error" and error["code"] == "invalid_value"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /%ff HTTP/1.1", 404),
        (b"GET /v1/models/%ff HTTP/1.1", 404),
        (b"GET /v1/models/%00 HTTP/1.1", 404),
        (b"GET /v1/models/../../etc/passwd HTTP/1.1", 404),
        (b"GET /v1/models?limit=%ff HTTP/1.1", 400),
        (b"GET /v1/models?%ff=1 HTTP/1.1", 200),
        (b"GET /v1/models/\xff HTTP/1.1", 400),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1", 431),
        (b"GET http://x/health HTTP/1.1", 200),
        (b"OPTIONS * HTTP/1.1", 204),
        (b"FOO /health HTTP/1.1", 400),
        (b"GET /health HTTP/9.9", 400),
        (b"GET /health HTTP/1.1\r\nx-request-id: \xff\xfe", 200),
        (b"GET /v1/models HTTP/1.1\r\nauthorization: Bearer \xff", 200),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -5", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json; charset=\xff", 415),
    ],
)
def test_hostile_request_lines_and_headers(server: LiveServer, head: bytes, status: int) -> None:
    assert raw(server, head) == status
    assert httpx.get(server.url + "/health").status_code == 200


@pytest.mark.parametrize("depth", [1, 2, 64])
def test_depth_is_counted_exactly(depth: int) -> None:
    text = b"[" * depth + b"]" * depth
    assert not is_deeper(decode_json(text, depth), depth)
    with pytest.raises(InvalidJson):
        decode_json(b'{"a":' + text + b"}", depth)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nx: " + b"a" * (2 << 20),
        b"GET /health HTTP/1.1" + b"".join(b"\r\nx-%d: y" % i for i in range(20_000)),
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1",
    ],
    ids=["one field", "many fields", "url"],
)
def test_an_endless_head_is_refused(server: LiveServer, head: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        with contextlib.suppress(ConnectionError):  # the server doesn't wait for the rest
            sock.sendall(head + b"\r\nhost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            answer = sock.recv(65536)
            assert answer.startswith(b"HTTP/1.1 431 ") and b"64 KiB" in answer
    assert httpx.get(server.url + "/health").status_code == 200


def test_heads_are_counted_one_by_one(server: LiveServer) -> None:
    with httpx.Client(base_url=server.url, headers={"x-long": "a" * 40_000}) as client:
        for _ in range(4):
            assert client.get("/health").status_code == 200
            assert client.post(CHAT, json=chat(messages=[{"role": "user", "content": "x" * 90_000}])).status_code < 500
