"""OpenTelemetry: a span for each request that makes a reply, with children queue, prefill and decode.

Spans are made when a request has ended, from times that are known anyway, and sent by a thread of the SDK in batches of
a second: a collector that is slow or gone costs spans, never a request. The SDK is an extra (`imp-server[otel]`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from imp_server.core import ConfigError, Timings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_log = logging.getLogger(__name__)
_PATH = "/v1/traces"
_DELAY_MS = 1000
_EXPORT_S = 5
_MOST_WAITING = 2048
"""Spans; what comes beyond is left out."""
_CLOSE_S = 1.0


class TraceContext(NamedTuple):
    """What a client sent of W3C's trace context; "" where it sent nothing."""

    parent: str = ""
    state: str = ""


class TracedRequest(NamedTuple):
    """What a span tells of a request. Times are of `time.monotonic`, in seconds."""

    name: str
    """Method and path of the operation."""
    began_s: float
    ended_s: float
    status: int
    attributes: Mapping[str, Any]
    context: TraceContext
    submitted_s: float | None = None
    """When the engine was asked."""
    timings: Timings | None = None
    has_failed: bool = False


class Traces:
    """Owner of the tracer, and of the thread that sends."""

    def __init__(self, endpoint: str, service: str, exporter: SpanExporter | None = None) -> None:
        """`endpoint`: of a collector that takes OTLP over HTTP. `exporter`: takes the spans instead.

        Raises ConfigError if the extra isn't installed.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(
                f"--otlp-endpoint needs the extra: pip install 'imp-server[otel]' ({error.name} is missing)"
            ) from None
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # each failure is counted, and told once
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self.counts = {"spans_exported": 0, "export_failures": 0, "unsampled_requests": 0}
        sent = _counted(exporter or OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=_EXPORT_S), self.counts)
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service}), sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(sent, max_queue_size=_MOST_WAITING, schedule_delay_millis=_DELAY_MS)
        )
        self._tracer = self._provider.get_tracer("imp_server")

    def put(self, request: TracedRequest) -> tuple[str, str]:
        """(trace id, span id) in hexadecimal digits, whether they are sent or not."""
        trace = self._trace
        sent = {"traceparent": request.context.parent, "tracestate": request.context.state}
        parent = self._propagator.extract({name: value for name, value in sent.items() if value})
        offset_s = time.time() - time.monotonic()

        def at(seconds: float) -> int:
            return int((seconds + offset_s) * 1e9)

        span = self._tracer.start_span(
            request.name,
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes=dict(request.attributes),
            start_time=at(request.began_s),
        )
        found = span.get_span_context()
        if not found.trace_flags.sampled:
            self.counts["unsampled_requests"] += 1
        elif request.timings is not None and request.submitted_s is not None:
            inside, start_s = trace.set_span_in_context(span), request.submitted_s
            for name in ("queue", "prefill", "decode"):
                end_s = min(start_s + getattr(request.timings, f"{name}_ms") / 1e3, request.ended_s)
                self._tracer.start_span(name, context=inside, start_time=at(start_s)).end(at(end_s))
                start_s = end_s
        if request.status >= 500 or request.has_failed:
            span.set_status(trace.StatusCode.ERROR)
        span.end(at(request.ended_s))
        return f"{found.trace_id:032x}", f"{found.span_id:016x}"

    def close(self) -> None:
        """What waits is sent, unless that takes long."""
        last = Thread(target=self._provider.shutdown, name="imp-traces", daemon=True)
        last.start()
        last.join(_CLOSE_S)


def traces_url(endpoint: str) -> str:
    """Where spans go: a collector's base address means its path for traces. Raises ConfigError."""
    parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--otlp-endpoint {endpoint} is no address: give it as http://127.0.0.1:4318")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(_PATH) else path + _PATH).geturl()


def _counted(exporter: SpanExporter, counts: dict[str, int]) -> SpanExporter:
    """The exporter; what comes of its batches is counted, and the first failure in a row told."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Counted(SpanExporter):
        _fails = False

        def export(self, spans: Any) -> SpanExportResult:
            try:
                result = exporter.export(spans)
            except Exception as error:
                _log.debug("spans can't be sent: %s", type(error).__name__)
                result = SpanExportResult.FAILURE
            good = result is SpanExportResult.SUCCESS
            counts["spans_exported"] += len(spans) if good else 0
            counts["export_failures"] += not good
            if not good and not self._fails:
                _log.warning("spans can't be sent to the collector (metrics.otlp_endpoint); they are left out")
            self._fails = not good
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Counted()
