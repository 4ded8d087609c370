"""What of our own lines and of other libraries' reaches stderr, by `log.level`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from imp_server.config.serving import LogSettings
from imp_server.logs import set_up_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("imp_server")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", "debug info warning"), ("info", "info warning"), ("warning", "warning"), ("error", "")],
)
def test_our_lines_obey_the_level(level: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(LogSettings(level=level))  # type: ignore[arg-type]
    ours = logging.getLogger("imp_server.engine.client.process")
    for name in ("debug", "info", "warning"):
        getattr(ours, name)(name)
    assert " ".join(line.split()[-1] for line in capsys.readouterr().err.splitlines()) == shown


def test_others_speak_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(LogSettings(level="debug"))
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble")
    assert capsys.readouterr().err.split()[-1] == "trouble"
