"""The page in a real browser: one server for all, a Chromium per file, a context of its own for each test.

Without Playwright or Chromium these tests are skipped, unless REQUIRE_BROWSER is set (`make test-browser`, `make ci`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from imp_server.core import Unavailable

from tests.api.live_server import LiveServer
from tests.browser.person import Person
from tests.live.toy_server import TOOLS_CHATML, toy_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_FLAGS = ["--no-sandbox", "--disable-background-timer-throttling", "--disable-renderer-backgrounding"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser/" in item.nodeid:
            item.add_marker("browser")


@pytest.fixture(scope="module")  # no longer: while Playwright's loop stands in this thread, no other test can run one
def browser() -> Iterator[Any]:
    if not os.environ.get("REQUIRE_BROWSER"):
        pytest.importorskip("playwright")
        if not CHROMIUM:
            pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def toy() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML, check_replies=False) as server:
        yield server


@pytest.fixture
def server(toy: LiveServer) -> Iterator[LiveServer]:
    """The scripted server, which every test finds as it was."""
    yield toy
    toy.on_loop(toy.engine._plays.clear)
    toy.on_loop(toy.engine.always)
    toy.on_loop(_end_all, toy)


def _end_all(toy: LiveServer) -> None:
    """What a page that is closed has left behind goes on for whoever comes back."""
    toy.engine._requests.fail_all(Unavailable("the test is over"))
    for key in list(toy.engine._rows):
        toy.engine._drop(key)


Meet = Callable[..., Person]


@pytest.fixture
def meet(browser: Any, server: LiveServer) -> Iterator[Meet]:
    """A person with a browser profile of their own; `meet(url=..., **options of the context)`. Whatever the page logs,
    raises, is refused by its own policy or asks of another server fails the test."""
    met: list[Person] = []

    def meet(url: str = "", **options: Any) -> Person:
        person = Person(browser.new_context(**options), url or server.url)
        met.append(person)
        return person

    yield meet
    for person in met:
        person.context.close()
    assert [fault for person in met for fault in person.faults] == []


@pytest.fixture
def person(meet: Meet) -> Person:
    found = meet()
    found.open()
    return found
