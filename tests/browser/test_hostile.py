"""Answers, names and files that want to run something; answers that are very long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from imp_server.engine.client.scripted import Emit, Wait, text_ids

from tests.api.live_server import LiveServer
from tests.browser.conftest import Meet
from tests.browser.person import Person, Tab
from tests.browser.test_chat import play
from tests.live.toy_server import call_text
from tests.ui.hostile_texts import HOSTILE

SAFE = """() => {
    const bad = [...document.querySelectorAll("main *, aside *")].filter((one) =>
        /^(script|iframe|object|embed|form|style|link|meta|base|img|video|math|template)$/i.test(one.tagName) ||
        [...one.attributes].some((a) => /^on/i.test(a.name) || /^\\s*(javascript|data|vbscript):/i.test(a.value)) ||
        (one.tagName === "A" && !/^(https?:|mailto:|#\\/|docs$)/.test(one.getAttribute("href"))));
    return [window.hacked ?? null, bad.map((one) => one.outerHTML)];
}"""


def check(tab: Tab) -> None:
    assert tab.page.evaluate(SAFE) == [None, []]


def bring(person: Person, path: Path, conversations: list[Any]) -> None:
    path.write_text(json.dumps({"format": "imp-conversations", "version": 1, "conversations": conversations}))
    with person.page.expect_file_chooser() as chooser:
        person.button("Import").click()
    chooser.value.set_files(path)
    person.lists(len(conversations))


def rendered(tab: Tab) -> None:
    """Until no block waits for the server any more."""
    tab.page.wait_for_function("() => !document.querySelector('article:not(.running) .block.open')", timeout=60_000)


def everywhere(texts: list[str]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for i, text in enumerate(texts):
        question = {"role": "user", "content": text, "files": [{"name": text, "text": text}]}
        call = {"id": text, "name": text, "text": text}
        answer = {"role": "assistant", "content": text, "thinking": text, "calls": [call], "finish": "tool_calls"}
        for message in (question, answer | {"model": text}):
            parent = messages[-1]["id"] if messages else None
            messages.append({"id": f"{i} {message['role']}", "parent": parent, "created": len(messages), **message})
    return {"title": "all of them", "model": texts[0], "leaf": messages[-1]["id"], "messages": messages}


def test_200_texts_in_an_imported_file(server: LiveServer, person: Person, tmp_path: Path) -> None:
    assert len(HOSTILE) >= 200
    titles = [{"title": text, "messages": []} for text in HOSTILE]
    bring(person, tmp_path / "file.json", [everywhere(list(HOSTILE)), *titles])
    check(person)
    person.page.get_by_role("link", name="all of them").click()
    person.page.wait_for_function("n => document.querySelectorAll('article').length === n", arg=2 * len(HOSTILE))
    person.page.evaluate("() => document.querySelectorAll('main details').forEach((one) => (one.open = true))")
    rendered(person)
    check(person)
    for part in (".call code", ".thought .block", ".text .block", ".numbers"):
        assert person.page.locator(part).count() >= len(HOSTILE) - 5, part


def test_200_texts_as_they_are_streamed(server: LiveServer, person: Person) -> None:
    text = "\n\n".join(HOSTILE).replace("<|", "< |")
    play(server, Emit(text_ids(f"<think>{text}</think>")), Emit(text_ids(text)))
    person.say("\n".join(HOSTILE[:20]))
    person.done()
    person.answer.locator("summary").first.click()
    rendered(person)
    check(person)
    play(server, text_ids("".join(call_text("weather", city=one) for one in HOSTILE[:30])))
    person.button("Settings of this conversation").click()
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    person.page.get_by_label("Tools that the model may call").fill(json.dumps(tools))
    person.button("Save").click()
    person.ask("call", 2)
    assert person.page.get_by_role("region", name="Tool call").count() == 30
    check(person)


def test_200_names_of_models(server: LiveServer, meet: Meet) -> None:
    person = meet()
    model = {"object": "model", "loaded": True, "max_model_len": 10, "meta": None}
    listed = {"data": [{"id": text, "status": {"value": "loaded", "error": text}, **model} for text in HOSTILE]}
    person.page.route("**/v1/models", lambda route: route.fulfill(json=listed))
    person.page.route("**/models/sse", lambda route: route.abort())
    person.open()
    person.page.locator("button.model").click()
    person.page.wait_for_function("n => document.querySelectorAll('.model-row').length === n", arg=len(HOSTILE))
    check(person)


def test_a_megabyte_costs_linear_work(server: LiveServer, person: Person, tmp_path: Path) -> None:
    """The same page draws a quarter, and the whole, as pieces come; work is measured, not time spent waiting."""
    person.page.route(
        "**/ui/render", lambda route: route.fulfill(status=503, json={"error": {"message": "x", "code": 503}})
    )
    times = person.page.evaluate(
        """async () => {
            const { Article } = await import("./ui/markdown.js");
            const line = "Some words, `code` and more of them to fill the line up.\\n";
            const paragraph = line.repeat(6) + "\\n";
            const measure = (size) => {
                const box = document.querySelector(".log").appendChild(document.createElement("div"));
                const article = new Article(box);
                const begun = performance.now();
                for (let at = 0, n = 0; at < size; at += 40, n++) {
                    const from = at % paragraph.length;
                    article.append(paragraph.slice(from, from + 40));
                    if (n % 250 === 0) document.querySelector(".scroller").scrollTop = 1e9;
                }
                article.end();
                const took = performance.now() - begun;
                box.remove();
                return took;
            };
            measure(50_000);
            return [measure(250_000), measure(1_000_000)];
        }"""
    )
    print("ms for 250 kB and 1 MB:", [round(time) for time in times])
    assert times[1] < 6 * times[0] + 100, times


def test_one_line_of_a_megabyte_costs_linear_work(server: LiveServer, person: Person) -> None:
    times = person.page.evaluate(
        """async () => {
            const { Article } = await import("./ui/markdown.js");
            const measure = (size) => {
                const box = document.querySelector(".log").appendChild(document.createElement("div"));
                const article = new Article(box);
                const begun = performance.now();
                for (let at = 0, n = 0; at < size; at += 40, n++) {
                    article.append("no end of this line, word by word, ever ");
                    if (n % 250 === 0) document.querySelector(".scroller").scrollTop = 1e9;
                }
                article.end();
                const took = performance.now() - begun;
                box.remove();
                return took;
            };
            measure(70_000);
            return [measure(250_000), measure(1_000_000)];
        }"""
    )
    print("ms for one line of 250 kB and 1 MB:", [round(time) for time in times])
    person.page.wait_for_timeout(300)
    assert person.asked("POST", "/ui/render") == 0, "what is longer than the bound stays as it was written"
    assert times[1] < 6 * times[0] + 100, times


def test_a_megabyte_from_a_file_is_shown(server: LiveServer, person: Person, tmp_path: Path) -> None:
    text = "Some words of the answer.\n\n" * 37_000 + "The end."
    answer = {"id": "a", "role": "assistant", "content": text}
    bring(person, tmp_path / "big.json", [{"title": "big", "leaf": "a", "messages": [answer]}])
    person.items.first.get_by_role("link").click()
    person.page.get_by_text("The end.").wait_for(timeout=20_000)


@pytest.mark.parametrize("n_bytes", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_rendering_costs_linear_work(server: LiveServer, person: Person, tmp_path: Path, n_bytes: int) -> None:
    """Each block goes to the server once, so what is sent is as long as the text."""
    text = "Some words of the answer, `code` and **more**.\n" * 20 + "\n"
    text = text * (n_bytes // len(text)) + "The end."
    answer = {"id": "a", "role": "assistant", "content": text}
    bring(person, tmp_path / "big.json", [{"title": "big", "leaf": "a", "messages": [answer]}])
    sent: list[int] = []
    person.page.on("request", lambda r: sent.append(len(r.post_data or "")) if r.url.endswith("/ui/render") else None)
    person.items.first.get_by_role("link").click()
    person.page.get_by_text("The end.").wait_for(timeout=20_000)
    rendered(person)
    print(f"{len(text)} bytes: {len(sent)} requests of {sum(sent)} bytes")
    assert person.answer.locator(".block strong").count() == text.count("**more**")
    assert len(text) < sum(sent) < 1.1 * len(text) and len(sent) < len(text) / 6000


def test_a_finished_block_is_rendered_once_and_at_most_five_times_a_second(server: LiveServer, person: Person) -> None:
    asked: list[tuple[float, list[str]]] = []
    stamp = "() => performance.now()"

    def note(route: Any) -> None:
        asked.append((person.page.evaluate(stamp), route.request.post_data_json["blocks"]))
        route.continue_()

    person.page.route("**/ui/render", note)
    blocks = [f"block {i} " + "word " * 110 for i in range(36)]
    person.button("Settings of this conversation").click()
    person.page.get_by_label("Longest answer, tokens").fill("30000")
    person.button("Save").click()
    play(server, *[action for block in blocks for action in (Emit(text_ids(block + "\n\n")), Wait(0.05))])
    person.say("Many blocks")
    person.done()
    rendered(person)
    sent = [block.strip() for _, batch in asked for block in batch]
    assert sorted(sent) == sorted(block.strip() for block in blocks)
    for (begun, _), (later, _) in zip(asked, asked[5:], strict=False):
        assert later - begun > 900


FRAMES = """() => {
    window.frames_ms = [];
    let last = performance.now();
    const note = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(note); };
    requestAnimationFrame(note);
}"""


def test_10_000_tokens_do_not_slow_the_page(server: LiveServer, person: Person) -> None:
    person.button("Settings of this conversation").click()
    person.page.get_by_label("Longest answer, tokens").fill("20000")
    person.button("Save").click()
    text = ("Words of a long answer, `code` and **more**, line after line.\n" * 5 + "\n") * 33
    play(server, text_ids(text[:10_000]))
    person.page.evaluate(FRAMES)
    person.say("At length")
    person.page.wait_for_function(
        """() => document.querySelector('article.assistant') && !document.querySelector('article.assistant.running')""",
        timeout=90_000,
    )
    frames = person.page.evaluate("() => window.frames_ms")
    third = len(frames) // 3
    first, last = sorted(frames[:third]), sorted(frames[-third:])
    medians, tails = (first[third // 2], last[third // 2]), (first[int(0.95 * third)], last[int(0.95 * third)])
    print(f"frame times of the first and the last third, ms: median {medians}, 95 % {tails}, {len(frames)} frames")
    assert "10,000 tokens" in person.answer.locator(".numbers").inner_text() or "10,001" in person.answer.inner_text()
    assert medians[1] < max(34, 1.5 * medians[0])
