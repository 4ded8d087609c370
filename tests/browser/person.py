"""Somebody at the page: what is done with it, by the names that a person or a screen reader knows."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

EXPECTED_REFUSALS = "Failed to load resource"
"""Chromium's own line about a status of 4xx or 5xx; no page can keep it from being written."""


class Tab:
    """One tab. `page` is Playwright's."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url

    def open(self, path: str = "/") -> Tab:
        self.page.goto(self.url + path)
        self.page.get_by_role("main").wait_for()
        return self

    @property
    def field(self) -> Any:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    def say(self, text: str) -> None:
        self.field.fill(text)
        self.field.press("Enter")

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    @property
    def answers(self) -> Any:
        return self.page.locator("article.assistant")

    @property
    def answer(self) -> Any:
        return self.answers.last

    @property
    def text(self) -> Any:
        """Of the last answer."""
        return self.answer.locator(".text")

    def shows(self, text: str) -> None:
        """Until the last answer is that, and no other."""
        self.page.wait_for_function(
            "text => [...document.querySelectorAll('article.assistant .text')].at(-1)?.innerText.trim() === text",
            arg=text,
        )

    def lists(self, n: int) -> None:
        """Until the sidebar has n conversations."""
        self.page.wait_for_function("n => document.querySelectorAll('.item').length === n", arg=n)

    @property
    def questions(self) -> Any:
        return self.page.locator("article.user")

    def done(self, n: int = 1) -> None:
        """Until n answers are there and none is being written."""
        self.page.wait_for_function(
            """n => document.querySelectorAll('article.assistant').length === n
                 && !document.querySelector('article.assistant.running')""",
            arg=n,
        )

    def ask(self, text: str, n: int = 1) -> None:
        self.say(text)
        self.done(n)

    @property
    def items(self) -> Any:
        """Of the sidebar."""
        return self.page.get_by_role("list", name="Conversations").get_by_role("listitem")

    def says(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()

    def stored(self, store: str) -> list[dict[str, Any]]:
        """Everything in one store of IndexedDB."""
        found: list[dict[str, Any]] = self.page.evaluate(
            """store => new Promise((resolve, reject) => {
                const open = indexedDB.open("imp", 1);
                open.onsuccess = () => {
                    const all = open.result.transaction(store).objectStore(store).getAll();
                    all.onsuccess = () => { open.result.close(); resolve(all.result); };
                };
                open.onerror = () => reject(open.error);
            })""",
            store,
        )
        return found


class Person(Tab):
    """A profile of a browser, and its first tab."""

    def __init__(self, context: Any, url: str) -> None:
        context.set_default_timeout(10_000)
        self.context = context
        self.faults: list[str] = []
        self.requests: list[tuple[str, str]] = []
        super().__init__(self._watched(context.new_page()), url)

    def tab(self, path: str = "/") -> Tab:
        return Tab(self._watched(self.context.new_page()), self.url).open(path)

    def asked(self, method: str, path: str) -> int:
        """How often a path was asked for, whatever its query."""
        return sum(m == method and urlsplit(url).path == path for m, url in self.requests)

    def _watched(self, page: Any) -> Any:
        page.on("console", self._logged)
        page.on("pageerror", lambda error: self.faults.append(f"raised: {error}"))
        page.on("request", self._requested)
        return page

    def _logged(self, message: Any) -> None:
        if not message.text.startswith(EXPECTED_REFUSALS):
            self.faults.append(f"logged: {message.type} {message.text}")

    def _requested(self, request: Any) -> None:
        self.requests.append((request.method, request.url))
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"asked another server: {request.url}")
