"""What the server tells of its requests, besides the log's line: files, metrics, traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from imp_server.api.reports.files import FileWriter, PromptFiles, RequestLog
from imp_server.api.reports.measures import Measures, endpoint_of
from imp_server.api.reports.reply import ReplyReport
from imp_server.config import Config


class Ended(NamedTuple):
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


class Reports:
    """Owner of what is counted and written about requests. Used from one event loop."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError for a file that can't be written."""
        log = config.log
        self.measures = Measures()
        self._writer = FileWriter()
        self._request_log = RequestLog(log.requests, self._writer) if log.requests else None
        self._prompt_files = PromptFiles(log.prompts_dir, self._writer) if log.prompts_dir else None
        self._keeps_texts = log.request_texts and self._request_log is not None

    def begin(self, path: str, model: str, began_s: float, reply_id: str) -> ReplyReport:
        """Of a reply that is about to be made."""
        return ReplyReport(self.measures, endpoint_of(path), model, began_s, reply_id, keeps_text=self._keeps_texts)

    def take_prompts(self, prompts: list[str]) -> None:
        """Of a request that generates, before anything may refuse it."""
        if self._prompt_files is not None:
            self._prompt_files.put(prompts)

    def end(self, ended: Ended) -> None:
        """Once what its reply still makes is over."""
        if ended.report is None:
            self._tell(ended)
        else:
            ended.report.when_over(partial(self._tell, ended))

    def close(self) -> None:
        """What waits to be written is, unless that takes long."""
        self._writer.close()

    def _tell(self, ended: Ended) -> None:
        if endpoint := endpoint_of(ended.path):
            self.measures.note_request(endpoint, outcome(ended), time.monotonic() - ended.began_s)
        if self._request_log is not None:
            self._request_log.put(_line(ended))


def outcome(ended: Ended) -> str:
    """failed, rejected or cancelled; "" if it went well."""
    report = ended.report
    if ended.status >= 500 or (report is not None and report.has_failed):
        return "failed"
    if ended.status == 499 or (ended.status < 400 and report is not None and report.was_cut):
        return "cancelled"
    return "rejected" if ended.status >= 400 else ""


def _line(ended: Ended) -> dict[str, Any]:
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
