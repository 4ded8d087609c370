"""Conversations live in the browser: found, renamed, deleted, carried away and brought back."""

from __future__ import annotations

import json
from pathlib import Path

from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.browser.conftest import Meet
from tests.browser.person import Person


def three(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("the answer has a zebra"))
    person.ask("Apples")
    server.on_loop(server.engine.always, text_ids("ok"))
    for text in ("Bananas", "Cherries"):
        person.button("New chat").click()
        person.ask(text)


def titles(person: Person) -> list[str]:
    return [text.strip() for text in person.items.locator(".title").all_inner_texts()]


def test_search_rename_delete(server: LiveServer, person: Person) -> None:
    three(server, person)
    assert titles(person) == ["Cherries", "Bananas", "Apples"]
    search = person.page.get_by_role("searchbox", name="Search conversations")
    for words, found in (("ZEBRA", ["Apples"]), ("an", ["Bananas", "Apples"]), ("x y", [])):
        search.fill(words)
        person.lists(len(found))
        assert set(titles(person)) == set(found)
    person.says("Nothing found.")
    search.fill("")
    person.button("Rename Bananas").focus()
    person.page.keyboard.press("Enter")
    person.page.get_by_role("textbox", name="Title").fill("Yellow")
    person.button("Rename").click()
    person.page.get_by_text("Yellow").wait_for()
    person.button("Delete Cherries").focus()
    person.page.keyboard.press("Enter")
    person.button("Cancel").click()
    assert "Cherries" in titles(person)
    person.button("Delete Cherries").focus()
    person.page.keyboard.press("Enter")
    person.button("Delete").click()
    person.lists(2)
    assert person.page.title() == "New chat · imp"
    assert len(person.stored("conversations")) == 2 and len(person.stored("messages")) == 4
    person.page.reload()
    person.lists(2)
    assert titles(person) == ["Yellow", "Apples"]


def test_export_and_import(server: LiveServer, meet: Meet, tmp_path: Path) -> None:
    person = meet()
    person.open()
    three(server, person)
    with person.page.expect_download() as download:
        person.button("Export").click()
    path = tmp_path / "all.json"
    download.value.save_as(path)
    file = json.loads(path.read_text())
    assert [len(one["messages"]) for one in file["conversations"]] == [2, 2, 2]
    other = meet()
    other.open()
    for _ in range(2):  # nothing is written over
        with other.page.expect_file_chooser() as chooser:
            other.button("Import").click()
        chooser.value.set_files(path)
        other.page.wait_for_timeout(150)
    other.says("3 conversations came in.")
    other.lists(6)
    other.items.filter(has_text="Apples").first.get_by_role("link").click()
    other.shows("the answer has a zebra")
    for text, told in (("[]", "wasn't exported from here"), ("{", "isn't JSON")):
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        with other.page.expect_file_chooser() as chooser:
            other.button("Import").click()
        chooser.value.set_files(bad)
        other.says(told)


def test_hostile_circles_in_a_file(server: LiveServer, person: Person, tmp_path: Path) -> None:
    messages = [
        {"id": "a", "parent": "b", "role": "user"},
        {"id": "b", "parent": "a", "role": "assistant", "calls": [3]},
    ]
    file = {"format": "imp-conversations", "conversations": [None, {}, {"title": 3, "leaf": "b", "messages": messages}]}
    path = tmp_path / "circle.json"
    path.write_text(json.dumps(file))
    with person.page.expect_file_chooser() as chooser:
        person.button("Import").click()
    chooser.value.set_files(path)
    person.says("One conversation came in.")
    person.items.first.get_by_role("link").click()
    person.page.wait_for_function("() => document.querySelectorAll('article').length === 2")


def test_nothing_is_sent_of_them(server: LiveServer, person: Person) -> None:
    """Requests to other servers fail every test; to this one go the questions and what is shown, nothing else."""
    three(server, person)
    paths = {url.split("?")[0].removeprefix(person.url) for method, url in person.requests if method != "GET"}
    assert paths <= {"/v1/chat/completions", "/ui/render"}
