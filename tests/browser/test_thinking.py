"""Thinking is folded and can be skipped while it lasts; calls of tools are shown as such and can be answered."""

from __future__ import annotations

import json
import re

from imp_server.core.owner import NOBODY
from imp_server.engine.client.scripted import ScriptGate, Wait, text_ids

from tests.api.live_server import LiveServer
from tests.browser.person import Person
from tests.browser.test_chat import gate, play
from tests.live.toy_server import call_text, prompt_of

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_thinking_is_folded_with_its_time(server: LiveServer, person: Person) -> None:
    event = gate(server)
    play(server, text_ids("<think>Hidden *thought*"), ScriptGate(event), Wait(0.6), text_ids("</think>\nShown"))
    person.say("Hello")
    person.page.get_by_text("Thinking for").wait_for()
    assert person.button("Skip thinking").is_visible() and not person.page.get_by_text("Hidden").is_visible()
    server.on_loop(event.set)
    person.done()
    assert not person.button("Skip thinking").is_visible()
    summary = person.answer.locator("summary")
    assert re.fullmatch(r"Thought for \d\.\d s", summary.inner_text())
    assert float(summary.inner_text().split()[2]) >= 0.5
    assert person.text.inner_text() == "Shown"
    summary.click()
    person.answer.locator("em", has_text="thought").wait_for()


def test_skip_goes_by_the_control_route(server: LiveServer, person: Person) -> None:
    event = gate(server)
    play(server, text_ids("<think>Long"), ScriptGate(event), text_ids("Answer"))
    person.say("Hello")
    person.page.get_by_text("Thinking for").wait_for()
    with person.page.expect_request("**/v1/chat/completions/control") as sent:
        person.button("Skip thinking").click()
    body = json.loads(sent.value.post_data)
    (running,) = [m for m in person.stored("messages") if m["role"] == "assistant"]
    assert (
        body["action"] == "reasoning_end" and body["id"].startswith("chatcmpl-") and body["model"] == running["model"]
    )
    server.on_loop(event.set)
    person.done()
    assert person.text.inner_text() == "Answer" and "Nothing was skipped" not in person.answer.inner_text()


def test_skip_says_when_there_was_nothing_to_skip(server: LiveServer, person: Person) -> None:
    event = gate(server)
    play(server, text_ids("<think>Long"), ScriptGate(event))
    person.say("Hello")
    person.page.get_by_text("Thinking for").wait_for()
    (stream,) = person.stored("streams")
    name = f"{stream['conversation']}::{stream['model']}"

    def refuse(route: object) -> None:
        """The answer ended while the button was on its way."""
        server.on_loop(server.services.sessions.of(NOBODY).stop, name)
        route.continue_()  # type: ignore[attr-defined]

    person.page.route("**/v1/chat/completions/control", refuse)
    person.button("Skip thinking").click()
    person.page.get_by_text("Nothing was skipped").or_(person.page.get_by_text("no longer has")).first.wait_for()
    server.on_loop(event.set)


def test_skip_without_an_id_says_so(server: LiveServer, person: Person) -> None:
    told = person.page.evaluate(
        """async () => {
            const { Chat } = await import("./ui/chat.js");
            return Chat.prototype.skip.call({}, { completion: "" });
        }"""
    )
    assert "no id" in told


def test_the_flag_follows_the_conversation(server: LiveServer, person: Person) -> None:
    event = gate(server)
    play(server, text_ids("<think>Deep"), ScriptGate(event), text_ids("</think>Out"))
    person.say("first")
    person.page.get_by_text("Thinking for").wait_for()
    person.button("New chat").click()
    play(server, text_ids("quick"))
    person.ask("second")
    assert person.button("Skip thinking").count() == 0 or not person.button("Skip thinking").is_visible()
    person.items.filter(has_text="first").get_by_role("link").click()
    person.button("Skip thinking").wait_for()
    server.on_loop(event.set)
    person.done()
    assert person.text.inner_text() == "Out" and not person.button("Skip thinking").is_visible()


def test_calls_of_tools(server: LiveServer, person: Person) -> None:
    person.button("Settings of this conversation").click()
    person.page.get_by_label("Tools that the model may call").fill(json.dumps(TOOLS))
    person.button("Save").click()
    play(server, text_ids(call_text("weather", city="Bern")))
    person.ask("Weather?")
    call = person.page.get_by_role("region", name="Tool call")
    assert "weather" in call.inner_text() and '"city": "Bern"' in call.locator("pre").inner_text()
    event = gate(server)
    play(server, text_ids("<think>Hm"), ScriptGate(event), text_ids("</think>It is sunny."))
    person.page.get_by_role("textbox", name="Result of the tool").fill("sunny")
    person.button("Send result").click()
    person.page.get_by_text("Thinking for").wait_for()
    with person.page.expect_request("**/control") as sent:
        person.button("Skip thinking").click()
    assert json.loads(sent.value.post_data)["id"].startswith("chatcmpl-"), "also in the turn of a tool"
    server.on_loop(event.set)
    person.done(2)
    assert person.button("Send result").count() == 0, "it has its result"
    assert "sunny" in prompt_of(server) and '"city": "Bern"' in prompt_of(server)
    assert person.questions.count() == 1 and person.page.get_by_label("Result of a tool").count() == 1
