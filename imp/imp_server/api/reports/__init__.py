"""What the server tells of its requests, besides the log's line: files, metrics, traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from imp_server.api.reports.files import FileWriter, PromptFiles, RequestLog
from imp_server.api.reports.measures import Measures, endpoint_of
from imp_server.api.reports.reply import ReplyReport
from imp_server.api.reports.traces import TraceContext, TracedRequest, Traces
from imp_server.config import Config


class EndedRequest(NamedTuple):
    """A request that has been answered, or given up."""

    path: str
    """Of the contract's operation; "" for a path that it doesn't have."""
    status: int
    """499: its client left before there was an answer."""
    began_s: float
    """As `time.monotonic` has it."""
    fields: Callable[[], dict[str, Any]]
    """Of the log's line, as they stand."""
    report: ReplyReport | None
    sent_id: str
    """The client's own name of it, made fit to be shown; "" without one."""
    code: str
    """Of the error that was the answer; "" without one."""
    method: str = "POST"
    context: TraceContext = TraceContext()


class Reports:
    """Owner of what is counted and written about requests. Used from one event loop."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError for a file that can't be written."""
        log = config.log
        self.measures = Measures()
        self._writer = FileWriter()
        self._request_log = RequestLog(log.requests, self._writer) if log.requests else None
        self._prompt_files = PromptFiles(log.prompts_dir, self._writer) if log.prompts_dir else None
        otlp = config.metrics
        self.traces = Traces(otlp.otlp_endpoint, otlp.otlp_service_name) if otlp.otlp_endpoint else None
        self._keeps_texts = log.request_texts and self._request_log is not None

    def begin(self, path: str, model: str, began_s: float, reply_id: str, *, streamed: bool) -> ReplyReport:
        """Of a reply that is about to be made."""
        report = ReplyReport(self.measures, endpoint_of(path), model, began_s, reply_id, keeps_text=self._keeps_texts)
        report.streamed = streamed
        return report

    def take_prompts(self, prompts: list[str]) -> None:
        """Of a request that generates, before anything may refuse it."""
        if self._prompt_files is not None:
            self._prompt_files.put(prompts)

    def end(self, ended: EndedRequest) -> None:
        """Once what its reply still makes is over."""
        if ended.report is None:
            self._tell(ended)
        else:
            ended.report.when_over(partial(self._tell, ended))

    def close(self) -> None:
        """What waits to be written is, unless that takes long."""
        self._writer.close()
        if self.traces is not None:
            self.traces.close()

    def counters(self) -> dict[str, float]:
        """Of the traces, by name."""
        counts = _NO_TRACES if self.traces is None else self.traces.counts
        return {f"otlp_{name}_total": float(n) for name, n in counts.items()}

    def _tell(self, ended: EndedRequest) -> None:
        now_s, endpoint = time.monotonic(), endpoint_of(ended.path)
        ids: dict[str, str] = {}
        if endpoint:
            self.measures.note_request(endpoint, outcome(ended), now_s - ended.began_s)
            if self.traces is not None:
                ids = dict(zip(("trace_id", "span_id"), self.traces.put(_traced(ended, now_s)), strict=True))
        if self._request_log is not None:
            self._request_log.put(_line(ended) | ids)


_NO_TRACES = {"spans_exported": 0, "export_failures": 0, "unsampled_requests": 0}


def _traced(ended: EndedRequest, now_s: float) -> TracedRequest:
    fields, report = ended.fields(), ended.report
    attributes: dict[str, Any] = {"http.response.status_code": ended.status, "http.route": ended.path}
    names = {
        "model": "gen_ai.request.model",
        "prompt_tokens": "gen_ai.usage.input_tokens",
        "completion_tokens": "gen_ai.usage.output_tokens",
        "cached_tokens": "imp.cached_tokens",
        "first_token_ms": "imp.ttft_ms",
    }
    attributes |= {theirs: fields[ours] for ours, theirs in names.items() if ours in fields}
    if "finish" in fields:
        attributes["gen_ai.response.finish_reasons"] = fields["finish"].split(",")
    if ended.sent_id:
        attributes["imp.client_request_id"] = ended.sent_id
    request_id = report.id if report is not None else fields.get("request_id", "")
    if request_id:
        attributes["imp.request_id"] = request_id
    if report is not None:
        attributes["imp.stream"] = report.streamed
    timings = report.timings if report is not None else None
    if timings is not None:
        attributes["imp.queue_ms"] = timings.queue_ms
    return TracedRequest(
        f"{ended.method} {ended.path}",
        ended.began_s,
        now_s,
        ended.status,
        attributes,
        ended.context,
        report.submitted_s if report is not None else None,
        timings,
        outcome(ended) == "failed",
    )


def outcome(ended: EndedRequest) -> str:
    """failed, rejected or cancelled; "" if it went well."""
    report = ended.report
    if ended.status >= 500 or (report is not None and report.has_failed):
        return "failed"
    if ended.status == 499 or (ended.status < 400 and report is not None and report.was_cut):
        return "cancelled"
    return "rejected" if ended.status >= 400 else ""


def _line(ended: EndedRequest) -> dict[str, Any]:
    line: dict[str, Any] = {"time": round(time.time(), 3), **ended.fields(), "outcome": outcome(ended) or "ok"}
    if ended.code:
        line["code"] = ended.code
    if ended.report is not None:
        line["request_id"] = ended.report.id
    if ended.sent_id:
        line["client_request_id"] = ended.sent_id
    if ended.report is not None:
        timings = ended.report.timings
        if timings is not None:
            line["timings"] = {
                "queue_ms": round(timings.queue_ms, 3),
                "prefill_ms": round(timings.prefill_ms, 3),
                "decode_ms": round(timings.decode_ms, 3),
                "ttft_ms": round(timings.ttft_ms, 3),
            }
        line |= ended.report.texts()
    return line
