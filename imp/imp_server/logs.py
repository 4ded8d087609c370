"""Log lines on stderr, of the API process and of engines: for people, or one JSON object per line."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
from typing import TextIO

from imp_server.config.serving import Log

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class PrettyFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"{clock} {level}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """Fields given as `extra=` become fields of the object."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _STANDARD},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class JsonLines(io.TextIOBase):
    """A text stream that makes a JSON object of each line: what is printed reads like what is logged."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner
        self._begun = ""
        """A line without its end so far."""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                told = {"time": round(time.time(), 3), "level": "info", "logger": "imp", "message": line}
                self.inner.write(json.dumps(told, ensure_ascii=False) + "\n")
        self.flush()
        return len(text)

    def flush(self) -> None:
        if not self.inner.closed:
            self.inner.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.inner.fileno()


def speak_json(*, banner: bool = False) -> None:
    """From now on every line on stderr is a JSON object. `banner`: what goes to stdout is told there, too."""
    if not isinstance(sys.stderr, JsonLines):
        sys.stderr = JsonLines(sys.stderr)
        logging.captureWarnings(True)
    if banner and not isinstance(sys.stdout, JsonLines):
        sys.stdout = JsonLines(sys.stderr.inner)


def set_up_logging(log: Log) -> None:
    """Install the handler of our process; other libraries speak from warnings on."""
    if log.format == "json":
        speak_json()
    handler = logging.StreamHandler(sys.stderr.inner if isinstance(sys.stderr, JsonLines) else sys.stderr)
    handler.setFormatter(JsonFormatter() if log.format == "json" else PrettyFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("imp_server").setLevel(log.level.upper())
