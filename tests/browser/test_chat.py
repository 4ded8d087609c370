"""A conversation: written, stopped, asked again, edited, continued; its settings, files and keys."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from imp_server.engine.client.scripted import ScriptedEngine, ScriptGate, Wait, text_ids

from tests.api.live_server import LiveServer
from tests.browser.conftest import Meet
from tests.browser.person import Person
from tests.live.toy_server import prompt_of


def play(server: LiveServer, *actions: Any) -> None:
    server.on_loop(server.engine.play, *actions)


def gate(server: LiveServer) -> asyncio.Event:
    return server.on_loop(asyncio.Event)


def test_an_answer_is_streamed(server: LiveServer, person: Person) -> None:
    event = gate(server)
    play(server, text_ids("The first half, "), ScriptGate(event), text_ids("and the second."))
    person.say("Hello")
    person.page.get_by_text("The first half,").wait_for()
    assert person.answer.get_attribute("aria-busy") == "true"
    assert person.button("Send").count() == 0 and person.button("Stop").count() == 1
    server.on_loop(event.set)
    person.done()
    person.shows("The first half, and the second.")
    assert person.questions.inner_text() == "Hello"
    assert "tokens/s" in person.answer.locator(".numbers").inner_text()
    assert "32 tokens" in person.answer.locator(".numbers").inner_text()
    assert person.page.title() == "Hello · imp" and person.items.inner_text() == "Hello"


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_it_on_the_server(server: LiveServer, person: Person, how: str) -> None:
    play(server, text_ids("kept "), Wait(60), text_ids("never"))
    person.say("Hello")
    person.page.get_by_text("kept").wait_for()
    with person.page.expect_request(lambda r: r.method == "DELETE" and "/v1/stream?conv_id=" in r.url):
        if how == "button":
            person.button("Stop").click()
        else:
            person.page.keyboard.press("Escape")
    person.done()
    person.shows("kept")
    assert "Stopped." in person.answer.inner_text()
    person.page.wait_for_timeout(100)
    assert server.on_loop(lambda: server.engine.n_running) == 0
    assert person.stored("streams") == [] and person.asked("GET", "/v1/stream") == 0


def test_edit_and_resend_makes_a_branch(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("answer"))
    person.ask("first")
    person.ask("second", 2)
    person.questions.first.hover()
    person.button("Edit message").first.click()
    person.page.get_by_role("textbox", name="Edit message").fill("changed")
    person.page.keyboard.press("Enter")
    person.done(1)
    assert person.questions.all_inner_texts()[0].startswith("changed")
    assert "changed" in prompt_of(server) and "first" not in prompt_of(server)
    assert "2 / 2" in person.questions.first.inner_text()
    person.button("Previous version").first.click()
    person.done(2)
    assert "first" in person.questions.first.inner_text() and "second" in person.questions.last.inner_text()
    person.page.reload()
    person.done(2)


def test_answers_beside_each_other(server: LiveServer, person: Person) -> None:
    play(server, text_ids("one"))
    play(server, text_ids("two"))
    person.ask("Hello")
    person.button("Answer again").click()
    person.page.get_by_text("two", exact=True).wait_for()
    person.done()
    assert "2 / 2" in person.answer.inner_text()
    person.button("Previous version").click()
    person.shows("one")
    person.button("Next version").click()
    person.shows("two")


def test_continue_keeps_what_is_there(server: LiveServer, person: Person) -> None:
    play(server, text_ids("Once upon"), Wait(60))
    person.say("A tale")
    person.page.get_by_text("Once upon").wait_for()
    person.button("Stop").click()
    person.done()
    (before,) = [m for m in person.stored("messages") if m["role"] == "assistant"]
    play(server, text_ids(" a time."))
    person.button("Continue this answer").click()
    person.page.get_by_text("Once upon a time.").wait_for()
    person.done()
    assert prompt_of(server).endswith("<|im_start|>assistant\nOnce upon")
    (after,) = [m for m in person.stored("messages") if m["role"] == "assistant"]
    assert after["id"] == before["id"] and after["content"] == "Once upon a time." and after["finish"] == "stop"


def test_a_continued_answer_that_breaks_again_keeps_its_beginning(server: LiveServer, person: Person) -> None:
    play(server, text_ids("a"), Wait(60))
    person.say("Letters")
    person.page.get_by_text("a", exact=True).wait_for()
    person.button("Stop").click()
    person.done()
    event = gate(server)
    play(server, text_ids(" b"), ScriptGate(event), text_ids(" c"))
    person.button("Continue this answer").click()
    person.page.get_by_text("a b", exact=True).wait_for()
    person.page.wait_for_timeout(400)
    person.page.reload()
    person.page.get_by_text("a b", exact=True).wait_for()
    server.on_loop(event.set)
    person.page.get_by_text("a b c", exact=True).wait_for()


def test_the_answer_to_continue_is_found_by_its_id(server: LiveServer, person: Person) -> None:
    """Also where another version was shown, and written, last."""
    play(server, text_ids("one"), Wait(60))
    person.say("Numbers")
    person.page.get_by_text("one", exact=True).wait_for()
    person.button("Stop").click()
    person.done()
    play(server, text_ids("two"))
    person.button("Answer again").click()
    person.shows("two")
    person.done()
    person.button("Previous version").click()
    play(server, text_ids(" and a half"))
    person.button("Continue this answer").click()
    person.shows("one and a half")
    person.done()
    assert prompt_of(server).endswith("<|im_start|>assistant\none")
    person.button("Next version").click()
    person.shows("two")


def test_long_texts_are_pasted_as_files(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ok"))
    person.page.evaluate(
        """() => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/plain", "pasted ".repeat(1500));
            document.querySelector(".composer textarea").dispatchEvent(
                new ClipboardEvent("paste", { clipboardData, cancelable: true }));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File(["dropped"], "d.txt"));
            const drop = new DragEvent("drop", { dataTransfer, cancelable: true });
            document.querySelector(".composer").dispatchEvent(drop);
        }"""
    )
    person.button("Remove d.txt").wait_for()
    person.button("Remove pasted.txt").click()
    person.ask("What is it?")
    assert "d.txt\n```\ndropped\n```" in prompt_of(server) and "pasted" not in prompt_of(server)


def test_the_console_is_silent_unless_it_is_asked_for(server: LiveServer, meet: Meet) -> None:
    person = meet()
    person.open("/?debug")
    person.page.wait_for_timeout(300)
    assert any("debug GET" in line for line in person.faults)
    person.faults.clear()


def test_settings_are_those_of_the_conversation(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ok"))
    person.button("Settings of this conversation").click()
    person.page.get_by_label("System prompt").fill("Be brief.")
    person.page.get_by_label("Temperature").fill("0.25")
    person.page.get_by_label("Longest answer, tokens").fill("77")
    person.page.get_by_label("Stop at").fill("END\nFIN")
    person.page.get_by_label("Thinking").select_option("off")
    person.button("Save").click()
    with person.page.expect_request("**/v1/chat/completions") as sent:
        person.ask("Hello")
    body = json.loads(sent.value.post_data)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"], body["stop"]) == (0.25, 77, ["END", "FIN"])
    assert body["enable_thinking"] is False
    assert body["sse_ping_interval"] == 1 and body["return_progress"] is True
    person.button("New chat").click()
    with person.page.expect_request("**/v1/chat/completions") as sent:
        person.ask("Bye")
    assert "temperature" not in json.loads(sent.value.post_data)
    person.items.nth(1).get_by_role("link").click()
    person.page.get_by_role("heading", name="Hello").wait_for()
    person.button("Settings of this conversation").click()
    assert person.page.get_by_label("Temperature").input_value() == "0.25"


def test_text_files_go_along(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ok"))
    files = [
        {"name": "a.py", "mimeType": "text/x-python", "buffer": b"print('```')\n"},
        {"name": "b.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\n\x00"},
    ]
    with person.page.expect_file_chooser() as chooser:
        person.button("Attach text files").click()
    chooser.value.set_files(files)
    person.says("b.png isn't a text")
    assert person.page.get_by_role("list", name="Attached files").inner_text() == "a.py"
    person.ask("What is this?")
    assert "a.py\n````\nprint('```')\n\n````\n\nWhat is this?" in prompt_of(server)
    assert "a.py" in person.questions.inner_text()


def test_copies(server: LiveServer, meet: Meet) -> None:
    person = meet(permissions=["clipboard-read", "clipboard-write"])
    person.open()
    play(server, text_ids("Say:\n\n```python\nx = 1\n```\n\nDone."))
    person.ask("Code")

    def copied(button: str) -> str:
        person.button(button).click()
        return str(person.page.evaluate("navigator.clipboard.readText()"))

    assert person.page.locator(".code .tok-mi").inner_text() == "1"
    assert copied("Copy code") == "x = 1\n"
    assert copied("Copy answer") == "Say:\n\n```python\nx = 1\n```\n\nDone."
    person.questions.hover()
    assert copied("Copy message") == "Code"


def test_tables_lists_and_links(server: LiveServer, person: Person) -> None:
    play(server, text_ids("| a | b |\n|--|--:|\n| 1 | 2 |\n\n1. x\n\n2. y\n\n[z](https://z.example/)\n\n**bold**"))
    person.ask("A table")
    person.page.locator("table").wait_for()
    assert person.text.get_by_role("cell").all_inner_texts() == ["1", "2"]
    person.text.locator("ol > li").nth(1).wait_for()
    link = person.text.get_by_role("link")
    assert (link.get_attribute("href"), link.get_attribute("rel")) == ("https://z.example/", "noopener noreferrer")
    person.page.locator("strong", has_text="bold").wait_for()


def test_a_json_answer_is_pretty(server: LiveServer, person: Person) -> None:
    play(server, text_ids('{"a":[1,2],"b":"<i>"}'))
    person.ask("JSON")
    assert person.page.locator("pre").inner_text().strip() == json.dumps({"a": [1, 2], "b": "<i>"}, indent=2)
    person.page.reload()
    assert '"b": "<i>"' in person.page.locator("pre").inner_text()


def test_errors_are_words(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ok"))
    person.say("x" * 40_000)
    person.done()
    assert "longer than the model's context" in person.answer.get_by_role("alert").inner_text()
    person.button("New chat").click()
    person.ask("short")
    person.shows("ok")
    assert person.answer.get_by_role("alert").count() == 0


def test_what_cannot_be_sent_is_put_back(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ok"))
    person.button("Settings of this conversation").click()
    person.page.get_by_label("Tools that the model may call").fill("[{")
    person.button("Save").click()
    person.say("Hello")
    person.says("The tools in the settings aren't JSON.")
    assert person.field.input_value() == "Hello" and person.page.get_by_role("article").count() == 0
    assert person.stored("conversations") == [] == person.stored("messages")
    person.button("Settings of this conversation").click()
    person.page.get_by_label("Tools that the model may call").fill("")
    person.button("Save").click()
    person.ask("Hello")
    assert "/" not in person.questions.inner_text(), "there is no other version of it"


def test_the_state_of_the_server_is_words(server: LiveServer, person: Person) -> None:
    loading = {"status": "loading", "error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    person.page.route("**/health", lambda route: route.fulfill(status=503, json=loading))
    person.page.reload()
    person.page.get_by_role("status").get_by_text("Loading model.").wait_for()
    person.page.unroute("**/health")
    person.page.get_by_text("Loading model.").wait_for(state="hidden")
    person.page.route("**/health", lambda route: route.fulfill(json={"state": "suspended"}))
    person.page.reload()
    person.page.get_by_role("status").get_by_text("put to sleep by the operator").wait_for()
    person.page.route("**/health", lambda route: route.abort())
    person.page.reload()
    person.page.get_by_role("status").get_by_text("The server can't be reached.").wait_for()


def test_the_context_meter(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ok"))
    person.ask("Hello")
    assert "of 32,768 tokens" in person.page.locator(".context").inner_text()


def test_it_works_without_a_mouse(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ok"))
    keys = person.page.keyboard
    keys.type("Line one")
    keys.press("Shift+Enter")
    keys.type("line two")
    keys.press("Enter")
    person.done()
    assert "Line one\nline two" in prompt_of(server)
    keys.press("ArrowUp")
    keys.press("End")
    keys.press("Control+A")
    keys.type("changed")
    keys.press("Enter")
    person.page.get_by_text("2 / 2").first.wait_for()
    person.done()
    keys.press("Control+Shift+O")
    person.page.wait_for_function("() => document.title === 'New chat · imp'")
    keys.press("Control+K")
    keys.type("line one")
    person.lists(1)
    keys.press("Tab")
    keys.press("Enter")
    person.done()
    keys.press("Control+B")
    assert person.page.get_by_role("complementary").count() == 0
    keys.press("Control+B")
    person.page.get_by_role("complementary").wait_for()
    keys.press("Escape")
    person.button("Send").focus()
    keys.press("?")
    person.page.get_by_role("dialog", name="Keys").wait_for()
    keys.press("Escape")
    assert person.page.get_by_role("dialog").count() == 0


def test_two_conversations_do_not_disturb_each_other(server: LiveServer, person: Person) -> None:
    event = gate(server)
    play(server, text_ids("slow "), ScriptGate(event), text_ids("end"))
    person.say("first")
    person.page.get_by_text("slow").wait_for()
    person.button("New chat").click()
    play(server, text_ids("quick"))
    person.ask("second")
    person.shows("quick")
    assert person.button("Send").count() == 1
    first = person.items.filter(has_text="first")
    assert first.get_by_role("img", name="An answer is being written").count() == 1
    first.get_by_role("link").click()
    person.shows("slow")
    assert person.button("Stop").count() == 1
    server.on_loop(event.set)
    person.done()
    person.shows("slow end")
    assert person.page.get_by_role("img", name="An answer is being written").count() == 0


def test_progress_of_a_long_prompt(server: LiveServer, person: Person) -> None:
    from imp_server.engine.client.scripted import Prefilled

    event = gate(server)
    play(server, Prefilled(20, 10), ScriptGate(event), text_ids("ok"))
    person.say("x" * 40)
    person.page.get_by_text("Reading the prompt:").wait_for()
    server.on_loop(event.set)
    person.done()
    assert isinstance(server.engine, ScriptedEngine) and "Reading" not in person.answer.inner_text()
