"""What a client writes stays between it and the server: not in log lines, not in metrics. Pages guard themselves."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from imp_server.config.serving import LogSettings
from imp_server.engine.client.script import text_ids
from imp_server.logs import JsonFormatter, PrettyFormatter, set_up_logging

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server

SECRET = "zanzibar"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(settings={"log.level": "debug"}) as live:
        live.engine.always(*text_ids(SECRET))
        yield live


@contextmanager
def written() -> Iterator[io.StringIO]:
    """All that reaches the log, as both formats show it."""
    text = io.StringIO()
    handlers = []
    for formatter in (PrettyFormatter(), JsonFormatter()):
        handler = logging.StreamHandler(text)
        handler.setFormatter(formatter)
        handler.addFilter(lambda record: not record.name.startswith(("httpx", "httpcore")))  # of our own client
        handlers.append(handler)
    root = logging.getLogger()
    level, ours = root.level, logging.getLogger("imp_server").level
    root.setLevel(logging.DEBUG)
    logging.getLogger("imp_server").setLevel(logging.DEBUG)
    for each in handlers:
        root.addHandler(each)
    try:
        yield text
    finally:
        for each in handlers:
            root.removeHandler(each)
        root.setLevel(level)
        logging.getLogger("imp_server").setLevel(ours)


def schema(keyword: str, value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": SECRET, "schema": {"type": "object", keyword: value}}}


USER = [{"role": "user", "content": SECRET}]
CHAT = "/v1/chat/completions"
BODIES: list[tuple[str, Any]] = [
    (CHAT, {"messages": USER}),
    (CHAT, {"messages": USER, "stream": True}),
    (CHAT, {"messages": [{"role": SECRET, "content": SECRET}]}),
    (CHAT, {"messages": USER, SECRET: SECRET, "temperature": SECRET}),
    (CHAT, {"messages": USER, "model": SECRET}),
    (CHAT, {"messages": USER, "stop": [SECRET], "user": SECRET, "metadata": {SECRET: SECRET}}),
    (CHAT, {"messages": USER, "response_format": schema("properties", {SECRET: {"pattern": f"({SECRET}"}})}),
    (CHAT, {"messages": USER, "response_format": schema("enum", [SECRET])}),
    (CHAT, {"messages": USER, "response_format": schema("$ref", f"#/$defs/{SECRET}")}),
    (CHAT, {"messages": USER, "response_format": {"type": "regex", "regex": f"(?<{SECRET}"}}),
    (CHAT, {"messages": USER, "response_format": {"type": "grammar", "grammar": f"root ::= {SECRET}"}}),
    (CHAT, {"messages": USER, "tools": [{"type": "function", "function": {"name": SECRET, "parameters": 7}}]}),
    (CHAT, {"messages": USER, "lora": SECRET, "session_id": SECRET, "cache_salt": SECRET}),
    ("/v1/responses", {"input": SECRET, "previous_response_id": SECRET}),
    ("/v1/responses", {"input": SECRET}),
    ("/v1/messages", {"messages": USER, "max_tokens": 5, "tool_choice": {"type": "tool", "name": SECRET}}),
    ("/v1/completions", {"prompt": SECRET, "suffix": SECRET}),
    ("/completion", {"prompt": SECRET, "grammar": f"root ::= {SECRET}", "json_schema": {"enum": [SECRET]}}),
    ("/tokenize", {"content": SECRET}),
    (f"/v1/{SECRET}", {"prompt": SECRET}),
    (f"/v1/requests/{SECRET}/end_thinking", {}),
    (f"/v1/sessions/{SECRET}/close", {}),
]


def test_no_word_of_a_client_reaches_the_log(server: LiveServer) -> None:
    headers = {"x-request-id": SECRET, "user-agent": SECRET, "x-api-key": SECRET}
    with written() as log, httpx.Client(base_url=server.url, timeout=20, headers=headers) as http:
        statuses = [http.post(path, json={"model": "toy", **body}).status_code for path, body in BODIES]
        statuses.append(http.post(CHAT, content=f'{{"{SECRET}": '.encode()).status_code)
        statuses.append(http.get(f"/v1/models/{SECRET}").status_code)
        statuses.append(http.get("/v1/models", headers={"origin": f"http://{SECRET}.example"}).status_code)
        statuses.append(http.get(f"/v1/responses/{SECRET}?{SECRET}={SECRET}").status_code)
    assert {200, 400, 403, 404} <= set(statuses)
    lines = [line for line in log.getvalue().splitlines() if "imp_server" in line or "HTTP" in line]
    assert len(lines) >= 2 * len(statuses) - 2, "each request has its line, in both formats"
    assert not [line for line in log.getvalue().splitlines() if SECRET in line]


def test_a_fault_is_told_by_place_and_type(server: LiveServer) -> None:
    model = server.services.models.find("toy").text
    assert model is not None

    def fail(*_: Any) -> Any:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"what is {SECRET}?") from error

    with written() as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "begin_chat", fail)
        reply = httpx.post(f"{server.url}{CHAT}", json={"model": "toy", "messages": USER}, timeout=20)
    assert reply.status_code == 500 and SECRET not in reply.text
    text = log.getvalue()
    assert SECRET not in text and "ValueError" in text and "KeyError" in text and "in fail" in text


def test_metrics_have_no_label_of_a_clients_choosing(server: LiveServer) -> None:
    with httpx.Client(base_url=server.url, timeout=20) as http:
        for path, body in BODIES:
            http.post(path, json={"model": "toy", **body})
        text = http.get("/metrics").text
    assert SECRET not in text
    labels = {name for line in text.splitlines() if "{" in line for name in re.findall(r'(\w+)="', line)}
    ours = {"model", "model_name", "reason", "finished_reason", "job", "drafter", "position", "le", "endpoint", "tag"}
    ours |= {"block_size", "num_gpu_blocks", "max_lora", "running_lora_adapters", "waiting_lora_adapters", "priority"}
    assert labels <= ours


def test_lines_of_json_hold_no_message_of_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    root, ours = logging.getLogger(), logging.getLogger("imp_server")
    before = root.handlers[:], root.level, ours.level
    try:
        set_up_logging(LogSettings(format="json"))
        try:
            raise RuntimeError(SECRET)
        except RuntimeError:
            logging.getLogger("imp_server.x").exception("it failed")
        line = json.loads(capsys.readouterr().err)
    finally:
        root.handlers[:], root.level, ours.level = before
    assert line["message"] == "it failed" and line["exception"].endswith("RuntimeError") and SECRET not in str(line)
