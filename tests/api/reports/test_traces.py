"""OpenTelemetry by a collector's own protocol: a span per reply, its children, W3C context, collectors that fail."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from imp_server.api.reports.traces import traces_url
from imp_server.core import ConfigError, EngineFaulted
from imp_server.engine.client.script import Emit, Fail, Wait, text_ids
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server

CHAT = "/v1/chat/completions"
BODY = {"model": "toy", "messages": [{"role": "user", "content": "zanzibar"}], "max_tokens": 8}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Owner of what was sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.door = threading.Event()
        self.door.set()
        self.status = 200
        self.url = ""

    def take(self, path: str, data: bytes) -> int:
        self.door.wait(20)
        assert path == "/v1/traces"
        message = ExportTraceServiceRequest.FromString(data)
        if self.status == 200:
            for one in message.resource_spans:
                self.services |= {a.value.string_value for a in one.resource.attributes if a.key == "service.name"}
                self.spans += [span for scope in one.scope_spans for span in scope.spans]
        return self.status


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            data = gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data
            self.send_response(collector.take(self.path, data))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.door.set()
        server.shutdown()
        server.server_close()


@contextmanager
def serving(collector: Collector, **settings: Any) -> Iterator[tuple[LiveServer, httpx.Client]]:
    own = {"metrics.otlp_endpoint": collector.url, "metrics.otlp_service_name": "mine"}
    with toy_server(settings=own | settings) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        yield live, http


def until(condition: Callable[[], Any], limit_s: float = 8.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def told(span: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


def test_a_reply_is_a_span_with_its_phases(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with collecting() as collector, serving(collector, **{"log.requests": str(log)}) as (live, http):
        live.engine.play(Wait(0.03), Emit(text_ids("ab")), Wait(0.05), Emit(text_ids("c")))
        sent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=x", "x-request-id": "mine-1"}
        begun = time.time()
        reply = http.post(CHAT, json=BODY | {"stream": True}, headers=sent)
        assert reply.status_code == 200
        http.get("/health")
        http.get("/v1/models")
        until(lambda: len(collector.spans) >= 4)
        line = json.loads(log.read_text().splitlines()[0])
        until(lambda: "imp_otlp_spans_exported_total 4" in http.get("/metrics").text)
    by_name = {span.name: span for span in collector.spans}
    assert set(by_name) == {f"POST {CHAT}", "queue", "prefill", "decode"} and collector.services == {"mine"}
    whole = by_name[f"POST {CHAT}"]
    assert whole.trace_id.hex() == TRACE and whole.parent_span_id.hex() == PARENT and whole.kind == 2
    assert whole.trace_state == "vendor=x"
    assert (line["trace_id"], line["span_id"]) == (TRACE, whole.span_id.hex())
    children = [by_name[name] for name in ("queue", "prefill", "decode")]
    assert {child.parent_span_id for child in children} == {whole.span_id}
    for before, after in pairwise(children):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert whole.start_time_unix_nano <= children[0].start_time_unix_nano
    assert children[-1].end_time_unix_nano <= whole.end_time_unix_nano
    assert abs(whole.start_time_unix_nano / 1e9 - begun) < 1
    assert (by_name["decode"].end_time_unix_nano - by_name["decode"].start_time_unix_nano) / 1e9 >= 0.04
    found = told(whole)
    assert found["gen_ai.request.model"] == "toy" and found["imp.client_request_id"] == "mine-1"
    assert found["imp.request_id"].startswith("chatcmpl-") and found["imp.stream"] is True
    assert found["gen_ai.usage.output_tokens"] == 4 and found["gen_ai.usage.input_tokens"] > 8
    assert found["gen_ai.response.finish_reasons"] == ["stop"] and found["imp.cached_tokens"] == 0
    assert found["imp.ttft_ms"] >= 25 and found["imp.queue_ms"] >= 0
    assert "zanzibar" not in str(collector.spans)


def test_what_was_refused_or_failed_is_told() -> None:
    with collecting() as collector, serving(collector) as (live, http):
        http.post(CHAT, json=BODY | {"temperature": 9})
        live.engine.play(*text_ids("o"), Fail(EngineFaulted("no")))
        http.post("/v1/messages", json=BODY | {"stream": True})
        until(lambda: len(collector.spans) >= 2)
    spans = {span.name: span for span in collector.spans}
    assert told(spans[f"POST {CHAT}"])["http.response.status_code"] == 400
    assert spans[f"POST {CHAT}"].status.code == 0 and spans["POST /v1/messages"].status.code == 2


@pytest.mark.parametrize(
    ("parent", "n_spans", "trace"),
    [
        (f"00-{TRACE}-{PARENT}-00", 0, TRACE),
        (f"00-{TRACE}-{PARENT}-01", 4, TRACE),
        ("", 4, None),
        ("00-zanzibar-x-01", 4, None),
        (f"00-{'0' * 32}-{PARENT}-01", 4, None),
    ],
)
def test_the_context_of_w3c(parent: str, n_spans: int, trace: str | None) -> None:
    with collecting() as collector, serving(collector) as (live, http):
        live.engine.play(*text_ids("ab"))
        http.post(CHAT, json=BODY, headers={"traceparent": parent} if parent else {})
        unsampled = f"imp_otlp_unsampled_requests_total {int(not n_spans)}"
        until(lambda: unsampled in http.get("/metrics").text)
        until(lambda: len(collector.spans) == n_spans)
    found = {span.trace_id.hex() for span in collector.spans}
    assert len(found) == bool(n_spans)
    if n_spans:
        assert found == {trace} if trace else found.isdisjoint({TRACE, "0" * 32})


def test_a_collector_that_hangs_or_fails_delays_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        collector.status = 400
        with serving(collector) as (live, http):
            live.engine.always(*text_ids("ab"))
            http.post(CHAT, json=BODY)
            until(lambda: "imp_otlp_export_failures_total 1" in http.get("/metrics").text)
            collector.status = 200
            collector.door.clear()
            for _ in range(10):
                begun = time.monotonic()
                assert http.post(CHAT, json=BODY).status_code == 200
                assert time.monotonic() - begun < 3
            begun = time.monotonic()
    assert time.monotonic() - begun < 6, "nor the end"
    lines = [record.getMessage() for record in caplog.records if "collector" in record.getMessage()]
    assert lines == ["spans can't be sent to the collector (metrics.otlp_endpoint); they are left out"]


def test_addresses_of_collectors() -> None:
    assert traces_url("http://c:4318") == traces_url("c:4318/") == "http://c:4318/v1/traces"
    assert traces_url("https://c/otlp/v1/traces") == "https://c/otlp/v1/traces"
    for bad in ("", "ftp://c", "http://"):
        with pytest.raises(ConfigError):
            traces_url(bad)


def test_without_the_extra_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"imp-server\[otel\]"), toy_server(settings={"metrics.otlp_endpoint": "c:1"}):
        pass
