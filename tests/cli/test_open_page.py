"""`imp serve --open`, and the addresses that a server prints."""

from __future__ import annotations

import threading
import webbrowser

import pytest
from imp_server.cli.serve import _announce, command

LINE = "Server listening on http://127.0.0.1:9000"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    return found


def wait_for_browsers() -> None:
    for thread in threading.enumerate():
        if thread.name == "imp-browser":
            thread.join(5)


def test_the_page_is_opened_once_and_behind_its_prefix(opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _announce(LINE, opens_page=True)
    _announce("Also listening on http://127.0.0.2:9000", opens_page=True)
    _announce(LINE, prefix="llm/", opens_page=True)
    _announce("Server listening on http://0.0.0.0:9000", opens_page=True)
    _announce("Server listening on unix:/tmp/s", opens_page=True)
    wait_for_browsers()
    assert sorted(opened) == sorted(["http://127.0.0.1:9000/", "http://127.0.0.1:9000/llm/", "http://127.0.0.1:9000/"])
    assert "http://127.0.0.1:9000/llm/v1\n" in capsys.readouterr().out


def test_a_browser_that_stays_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    is_told, threads = threading.Event(), list[threading.Thread]()

    def stays(_: str) -> bool:
        threads.append(threading.current_thread())
        return is_told.wait(5)

    monkeypatch.setattr(webbrowser, "open", stays)
    _announce(LINE, opens_page=True)
    is_told.set()
    wait_for_browsers()
    assert threads and threading.main_thread() not in threads


def test_nothing_is_opened_unasked(opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _announce(LINE)
    assert opened == [] and "In a browser:      http://127.0.0.1:9000/\n" in capsys.readouterr().out


def test_the_flag_is_there() -> None:
    assert any("--open" in parameter.opts for parameter in command.params)
