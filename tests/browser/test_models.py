"""The model picker of a server of several models: what answers, what is in memory, what is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.api.live_server import LiveServer
from tests.api.router.several import ScriptedCatalogue, several, statuses
from tests.browser.conftest import Meet
from tests.browser.person import Person

FETCH = """
import json, time
for done in (0, 40):
    print(json.dumps({"file": "x.gguf", "done": done, "total": 100}), flush=True)
time.sleep(1.5)
print(json.dumps({"file": "x.gguf", "done": 100, "total": 100}), flush=True)
print(json.dumps({"name": "new"}))
"""
ENDLESS = FETCH.replace("1.5", "60")


@pytest.fixture(scope="module")
def catalogue() -> ScriptedCatalogue:
    return ScriptedCatalogue("alpha", "beta")


@pytest.fixture(scope="module")
def router(catalogue: ScriptedCatalogue) -> Iterator[LiveServer]:
    with several(catalogue) as live:
        yield live


@pytest.fixture
def chooser(router: LiveServer, meet: Meet) -> Person:
    person = meet(url=router.url)
    person.open()
    person.page.get_by_role("button", name=re.compile("^Model (alpha|beta)")).wait_for()
    return person


def open_menu(person: Person) -> None:
    person.page.locator("button.model").click()


def test_choosing_a_model_persists(chooser: Person, catalogue: ScriptedCatalogue) -> None:
    open_menu(chooser)
    chooser.page.keyboard.press("ArrowDown")
    chooser.page.keyboard.press("ArrowUp")
    chooser.page.keyboard.press("Escape")
    assert not chooser.button("Load beta").is_visible()
    open_menu(chooser)
    chooser.page.get_by_role("button", name="beta").first.focus()
    chooser.page.keyboard.press("Enter")
    chooser.page.get_by_role("button", name="Model beta").wait_for()
    chooser.ask("Who?")
    chooser.shows("beta")
    assert "beta" in chooser.answer.locator(".numbers").inner_text()
    chooser.page.reload()
    chooser.page.get_by_role("button", name="Model beta: in memory").wait_for()
    chooser.button("New chat").click()
    chooser.page.get_by_role("button", name="Model beta").wait_for()


def test_load_and_unload(chooser: Person, router: LiveServer, catalogue: ScriptedCatalogue) -> None:
    router.on_loop(catalogue["alpha"].may_load.clear)
    open_menu(chooser)
    chooser.button("Load alpha").click()
    chooser.button("Unload alpha").wait_for()
    chooser.page.get_by_role("button", name=re.compile("^alpha.*loading$")).wait_for()
    router.on_loop(catalogue["alpha"].may_load.set)
    chooser.page.get_by_role("button", name=re.compile("^alpha.*in memory$")).wait_for()
    chooser.button("Unload alpha").click()
    chooser.button("Load alpha").wait_for()
    assert statuses(router)["alpha"] == "unloaded"


def test_a_reload_while_the_model_is_being_loaded(
    chooser: Person, router: LiveServer, catalogue: ScriptedCatalogue
) -> None:
    """The question is the server's by then: its 503 is asked again, and the answer comes once."""
    if statuses(router)["beta"] != "unloaded":
        open_menu(chooser)
        chooser.button("Unload beta").click()
        chooser.button("Load beta").wait_for()
        chooser.page.keyboard.press("Escape")
    router.on_loop(catalogue["beta"].may_load.clear)
    open_menu(chooser)
    chooser.page.get_by_role("button", name=re.compile("^beta")).first.click()
    chooser.say("Who?")
    chooser.page.locator("article.running").wait_for()
    chooser.page.wait_for_timeout(300)
    chooser.page.reload()
    chooser.page.get_by_text("Waiting for the model").wait_for()
    router.on_loop(catalogue["beta"].may_load.set)
    chooser.done()
    chooser.shows("beta")
    assert chooser.asked("POST", "/v1/chat/completions") == 1 and catalogue.loads.count("beta") <= 2


def test_a_download_with_progress(chooser: Person, catalogue: ScriptedCatalogue) -> None:
    catalogue.fetch_script = FETCH
    open_menu(chooser)
    chooser.page.get_by_role("button", name="Download a model").click()
    catalogue.options["new"] = {"source": "catalogue"}
    chooser.page.get_by_role("textbox", name="Name of the model").fill("new")
    chooser.button("Download").click()
    chooser.page.get_by_text("downloading 40 %").wait_for()
    chooser.button("Load new").wait_for()
    catalogue.fetch_script = ENDLESS
    chooser.page.get_by_role("button", name="Download a model").click()
    chooser.page.get_by_role("textbox", name="Name of the model").fill("other")
    chooser.button("Download").click()
    chooser.button("Cancel other").click()
    chooser.button("Cancel other").wait_for(state="detached")


def test_what_is_refused_is_said(chooser: Person) -> None:
    open_menu(chooser)
    chooser.page.get_by_role("button", name="Download a model").click()
    chooser.page.get_by_role("textbox", name="Name of the model").fill("/etc/passwd")
    chooser.button("Download").click()
    chooser.says("no path")


def test_one_list_for_all_parts(chooser: Person) -> None:
    for name in ("Playground", "Status", "Chat"):
        chooser.page.get_by_role("link", name=name, exact=True).click()
        chooser.page.get_by_role("heading", level=1).first.wait_for()
    open_menu(chooser)
    chooser.page.wait_for_timeout(300)
    assert chooser.asked("GET", "/v1/models") == 1
