"""How it looks: light, dark, on a phone; what a screen reader finds. The pictures of the README are made here."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.engine.client.scripted import Action, Emit, ScriptedEngine, ScriptGate, Wait, text_ids

from tests.api.live_server import LiveServer, live_server
from tests.browser.conftest import Meet
from tests.browser.person import Person, Tab
from tests.browser.test_chat import gate, play
from tests.browser.test_hostile import rendered
from tests.live.toy_server import TOOLS_CHATML
from tests.toy import byte_model

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images"
ANSWER = """A **hash table** keeps each entry in a *bucket* that is computed from its key, so looking it up takes the
same time however many entries there are.

1. Compute the hash of the key.
2. Take it modulo the number of buckets.
3. Look through the few entries of that bucket.

```python
class Table:
    def __init__(self, size: int = 8) -> None:
        self.buckets = [[] for _ in range(size)]

    def put(self, key: str, value: object) -> None:
        bucket = self.buckets[hash(key) % len(self.buckets)]
        bucket[:] = [(k, v) for k, v in bucket if k != key] + [(key, value)]
```

| operation | average | worst |
|---|--:|--:|
| put, get | O(1) | O(n) |
"""
TITLES = ("Plan a week in Bern", "Why is the sky blue?", "Regex for ISO dates")


@pytest.fixture(scope="module")
def shown() -> Iterator[LiveServer]:
    """Its model's name says what it is: the pictures are no claim about a model."""
    model = byte_model(TOOLS_CHATML, context_length=8192)

    def engine() -> ScriptedEngine:
        return ScriptedEngine(model.vocabulary, context_length=8192)

    with live_server(engine, lambda: ModelTextSide(model), model="scripted", check_replies=False) as live:
        yield live


def spoken(text: str) -> list[Action]:
    """At a speed that could be real."""
    return [action for word in re.findall(r"\S+\s*", text) for action in (Emit(text_ids(word)), Wait(0.008))]


def fill(server: LiveServer, person: Person) -> None:
    for title in TITLES:
        play(server, text_ids("Yes."))
        person.ask(title)
        person.button("New chat").click()
    thought = "The reader wants the idea first, then a small example."
    play(server, *spoken(f"<think>{thought}</think>"), *spoken(ANSWER))
    person.ask("Explain how a hash table works, with a small example in Python.")
    rendered(person)


def no_overflow(tab: Tab) -> None:
    wide = tab.page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter((one) => {
            const { left, right, width } = one.getBoundingClientRect();
            const scrolls = one.closest(".wide, pre, .side, .conversations, svg, .off-screen, .to-content");
            return width && !scrolls && (right > innerWidth + 1 || left < -1);
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert wide == []


def picture(tab: Tab, name: str) -> None:
    """Kept where IMP_PICTURES is set: a picture is looked at before it is committed."""
    tab.page.mouse.move(5, 5)
    tab.page.locator("body").click(position={"x": 700, "y": 20}) if tab.page.viewport_size["width"] > 760 else None
    shot = tab.page.screenshot()
    if os.environ.get("IMP_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes(shot)


@pytest.mark.parametrize(
    ("name", "options", "paper"),
    [
        ("light", {"color_scheme": "light", "viewport": {"width": 1180, "height": 820}}, "rgb(255, 255, 255)"),
        ("dark", {"color_scheme": "dark", "viewport": {"width": 1180, "height": 820}}, "rgb(25, 26, 28)"),
        ("phone", {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "has_touch": True}, ""),
    ],
)
def test_pictures(shown: LiveServer, meet: Meet, name: str, options: dict[str, Any], paper: str) -> None:
    person = meet(url=shown.url, **options)
    person.open()
    no_overflow(person)
    if name == "phone":
        play(shown, *spoken(ANSWER))
        person.ask("Explain how a hash table works, with a small example in Python.")
        rendered(person)
    else:
        fill(shown, person)
    no_overflow(person)
    picture(person, name)
    if paper:
        assert person.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == paper


def test_a_phone(server: LiveServer, meet: Meet) -> None:
    person = meet(viewport={"width": 360, "height": 740}, has_touch=True)
    person.open()
    assert not person.items.first.is_visible() and not person.button("New chat").is_visible()
    play(
        server,
        Emit(text_ids("| a | b | c |\n|--|--|--|\n| " + " | ".join(["very wide cells"] * 3) + " |\n\n" + "x" * 300)),
    )
    person.ask("Wide")
    rendered(person)
    no_overflow(person)
    person.button("Conversations").click()
    person.button("New chat").click()
    person.page.wait_for_timeout(250)
    assert not person.button("New chat").is_visible()
    for name in ("playground", "status"):
        person.page.goto(f"{person.url}/#/{name}")
        person.page.locator(".page").wait_for()
        person.page.wait_for_timeout(150)
        no_overflow(person)
    person.open("/docs")
    person.page.locator("details.route").first.wait_for()
    no_overflow(person)


def test_colours_are_chosen_and_kept(meet: Meet) -> None:
    person = meet(color_scheme="light")
    person.open()
    colour = "() => getComputedStyle(document.body).backgroundColor"
    light = person.page.evaluate(colour)
    person.button("Colours: as the system").click()
    person.button("Colours: light").click()
    assert person.page.evaluate(colour) != light
    person.page.reload()
    person.button("Colours: dark").wait_for()
    assert person.page.evaluate(colour) != light


def test_what_a_screen_reader_finds(server: LiveServer, person: Person) -> None:
    event: asyncio.Event = gate(server)
    play(server, text_ids("half"), ScriptGate(event), text_ids(" whole"))
    person.say("Hello")
    person.page.get_by_text("half").wait_for()
    page = person.page
    for role, name in (
        ("main", None),
        ("complementary", "Conversations and parts"),
        ("navigation", "Parts of this page"),
        ("log", "Conversation"),
        ("article", "You"),
        ("article", "Answer"),
        ("list", "Conversations"),
        ("searchbox", "Search conversations"),
        ("textbox", "Message"),
        ("heading", "Hello"),
    ):
        assert page.get_by_role(role, **({"name": name, "exact": True} if name else {})).count() == 1, (role, name)
    assert page.get_by_role("article", name="Answer").get_attribute("aria-busy") == "true"
    server.on_loop(event.set)
    person.done()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, textarea, select")].filter((one) =>
            one.checkVisibility() && !one.getAttribute("aria-label") && !one.textContent.trim() && !one.labels?.length
        ).map((one) => one.outerHTML)"""
    )
    assert nameless == []
    assert page.get_by_role("link", name="Hello").get_attribute("aria-current") == "page"
    assert page.evaluate("() => document.documentElement.lang") == "en"
    page.keyboard.press("Tab")
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "focus is visible"
