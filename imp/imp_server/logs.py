"""Log lines on stderr, of the API process and of engines: for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

from imp_server.config.serving import LogSettings

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Formatter(logging.Formatter):
    """Exceptions are told by place and type alone: what they say may quote a prompt."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base class names it
        return "\n".join(_told(ei[1]))


def _told(error: BaseException | None) -> list[str]:
    if error is None:
        return []
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    first = [*_told(cause), "then:"] if cause is not None else []
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return [*first, where, type(error).__name__] if where else [*first, type(error).__name__]


class PrettyFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"{clock} {level}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(_Formatter):
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


def tell(text: str, level: int = logging.INFO) -> None:
    """A line for whoever runs the command, whatever `log.level` is: in a JSON log one object, else `text` as it stands.

    `text` may begin with `imp: `, which the object leaves out.
    """
    if not tell_json(text.removeprefix("imp: "), level):
        print(text, file=sys.stderr, flush=True)


def tell_json(message: str, level: int = logging.INFO) -> bool:
    """Writes `message` as a line of the log if that is JSON; False if it isn't."""
    handler = _json_handler()
    if handler is not None:
        handler.handle(logging.LogRecord("imp_server.cli", level, "", 0, message, None, None))
    return handler is not None


def is_json() -> bool:
    """Every line on stderr is an object."""
    return _json_handler() is not None


def _json_handler() -> logging.Handler | None:
    handlers = logging.getLogger().handlers
    return next((handler for handler in handlers if isinstance(handler.formatter, JsonFormatter)), None)


def set_up_logging(log: LogSettings) -> None:
    """Install the handler of our process; other libraries speak from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log.format == "json" else PrettyFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("imp_server").setLevel(log.level.upper())
