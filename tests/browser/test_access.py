"""How the page is reached: with a key, behind a prefix, over plain http from another machine, and how quickly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from imp_server.cli.serve import _own_address
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.browser.conftest import Meet
from tests.browser.person import Person
from tests.browser.test_chat import play
from tests.browser.test_reattach import check_whole, half
from tests.live.toy_server import TOOLS_CHATML, toy_server

KEY = "only-for-the-page"


@pytest.fixture(scope="module")
def locked() -> Iterator[LiveServer]:
    settings = {"server.api_key": (KEY,), "server.api_prefix": "/llm"}
    with toy_server(TOOLS_CHATML, check_replies=False, settings=settings) as server:
        yield server


def give_key(person: Person, key: str) -> None:
    dialog = person.page.get_by_role("dialog", name="Key needed")
    dialog.get_by_label("API key").fill(key)
    dialog.get_by_role("button", name="Use this key").click()


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(locked: LiveServer, meet: Meet) -> None:
    person = meet(url=f"{locked.url}/llm")
    heads: list[tuple[str, dict[str, str]]] = []
    person.context.on("request", lambda request: heads.append((request.url, request.headers)))
    person.open()
    person.says("This server asks for a key.")
    give_key(person, "wrong")
    person.says("doesn't know this key")
    give_key(person, KEY)
    go_on = half(locked, person)
    person.page.reload()
    person.page.get_by_text("«one»").wait_for()
    go_on()
    check_whole(person, "Hm ü")
    asked = [(url, head.get("authorization")) for url, head in heads if "/v1/stream" in url or "/completions" in url]
    assert len(asked) >= 2 and {authorization for _, authorization in asked} == {f"Bearer {KEY}"}
    kept = person.page.evaluate("() => [JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie]")
    assert KEY not in kept[0] and KEY in kept[1] and kept[2] == ""
    assert KEY not in str([person.stored(store) for store in ("conversations", "messages", "streams", "pieces")])
    other = person.tab()
    other.page.get_by_role("dialog", name="Key needed").wait_for()


def test_it_is_asked_for_once_if_it_is_declined(locked: LiveServer, meet: Meet) -> None:
    person = meet(url=f"{locked.url}/llm")
    person.open()
    person.page.get_by_role("dialog", name="Key needed").get_by_role("button", name="Cancel").click()
    person.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    person.page.wait_for_timeout(400)
    assert person.page.get_by_role("dialog").count() == 0
    person.say("Hello")
    give_key(person, KEY)
    person.done()


def test_the_docs_page_asks_for_it_too(locked: LiveServer, meet: Meet) -> None:
    person = meet(url=f"{locked.url}/llm")
    person.open("/docs")
    give_key(person, KEY)
    person.page.locator("details.route").first.wait_for()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[LiveServer]:
    """On this machine's own address, which no browser takes for trustworthy."""
    import socket

    address = _own_address(socket.AF_INET, "198.51.100.1")
    if not address or address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with toy_server(TOOLS_CHATML, check_replies=False, settings={"server.host": (address,)}) as server:
        yield server


def test_plain_http_from_another_machine(elsewhere: LiveServer, meet: Meet) -> None:
    person = meet(url=elsewhere.url)
    person.open()
    assert person.page.evaluate("() => [isSecureContext, typeof crypto.randomUUID, typeof navigator.clipboard]") == [
        False,
        "undefined",
        "undefined",
    ]
    go_on = half(elsewhere, person)
    person.page.reload()
    person.page.get_by_text("«one»").wait_for()
    go_on()
    check_whole(person, "Hm ü")
    play(elsewhere, text_ids("copied *text*"))
    person.button("New chat").click()
    person.ask("Again")
    person.button("Copy answer").click()
    person.field.focus()
    person.page.keyboard.press("Control+V")
    assert person.field.input_value() == "copied *text*"
    assert person.page.evaluate("() => 'serviceWorker' in navigator") is False


def test_the_first_paint_comes_at_once(server: LiveServer, person: Person) -> None:
    times = []
    for _ in range(4):
        person.page.reload()
        person.page.get_by_role("heading", name="What shall we work on?").wait_for()
        times.append(
            person.page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 1e9")
        )
    print("first contentful paint, ms:", [round(time) for time in times])
    assert min(times) < 300, times


def test_all_of_it_is_small(server: LiveServer, person: Person) -> None:
    for path in ("/#/playground", "/#/status"):
        person.page.goto(person.url + path)
        person.page.locator(".page").wait_for()
    sizes: dict[str, int] = person.page.evaluate(
        """() => Object.fromEntries(["resource", "navigation"].flatMap((kind) => performance.getEntriesByType(kind))
            .filter((one) => one.name.includes('/ui/') || one.entryType === 'navigation')
            .map((one) => [one.name, one.decodedBodySize]))"""
    )
    print("bytes of the page:", sum(sizes.values()))
    assert 50_000 < sum(sizes.values()) < 150_000


def test_files_of_two_versions_are_never_mixed(server: LiveServer, person: Person) -> None:
    """Everything is asked for again with its etag; what is unchanged isn't sent."""
    statuses: list[int] = []
    heads: list[Any] = []

    def note(one: Any) -> None:
        if "/ui/" in one.url:
            statuses.append(one.status)
            heads.append(one)

    person.page.on("response", note)
    person.page.reload()
    person.page.get_by_role("main").wait_for()
    assert len(statuses) > 15 and all(one.headers["cache-control"] == "no-cache" for one in heads)
