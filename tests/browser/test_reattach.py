"""An answer goes on where it was, once and byte for byte: after a reload, on a broken wire, in another tab."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from imp_server.core.owner import NOBODY
from imp_server.engine.client.scripted import ScriptGate, Wait, text_ids

from tests.api.live_server import LiveServer
from tests.browser.conftest import Meet
from tests.browser.cut_wire import wire_to
from tests.browser.person import Person, Tab
from tests.browser.test_chat import gate, play

FIRST, SECOND = "Grüße, 世界! 👋🏽 «one»\n\n- a\n- b", "\n- c `d`\n\nÉnd 🦊"
WHOLE = FIRST + SECOND
POST, STREAM, LOOKUP = "/v1/chat/completions", "/v1/stream", "/v1/streams/lookup"
SPINNER = "An answer is being written"


def answer_of(tab: Tab) -> dict[str, Any]:
    (found,) = [message for message in tab.stored("messages") if message["role"] == "assistant"]
    return found


def check_whole(tab: Tab, thinking: str = "") -> None:
    tab.page.get_by_text("Énd 🦊").wait_for()
    tab.page.wait_for_function("() => !document.querySelector('.running')")
    found = answer_of(tab)
    assert (found["content"], found["thinking"], found["finish"]) == (WHOLE, thinking, "stop")
    assert tab.stored("streams") == [] and tab.stored("pieces") == []


def half(server: LiveServer, person: Person) -> Any:
    """Begins an answer that waits in its middle; sets the event that lets it go on."""
    event = gate(server)
    play(server, text_ids("<think>Hm ü</think>" + FIRST), ScriptGate(event), text_ids(SECOND))
    person.say("Hello")
    person.page.get_by_text("«one»").wait_for()
    return lambda: server.on_loop(event.set)


def test_a_reload_in_the_middle(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    person.page.reload()
    person.page.get_by_text("«one»").wait_for()
    person.page.get_by_role("img", name=SPINNER).wait_for()
    go_on()
    check_whole(person, "Hm ü")
    assert person.asked("POST", POST) == 1 and person.asked("GET", STREAM) == 1
    assert person.page.get_by_role("img", name=SPINNER).count() == 0


def test_after_a_reload_it_never_looks_ended(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    person.page.add_init_script(
        """new MutationObserver(() => {
            if (document.querySelector("article.assistant:not(.running)")) window.looksEnded = true;
        }).observe(document, {childList: true, subtree: true, attributes: true});"""
    )
    person.page.reload()
    person.page.get_by_text("«one»").wait_for()
    assert not person.page.evaluate("() => window.looksEnded")
    go_on()
    check_whole(person, "Hm ü")
    assert person.page.evaluate("() => window.looksEnded")


def test_reloads_at_any_time(server: LiveServer, person: Person) -> None:
    """Tokens never wait for the page, whatever becomes of it meanwhile."""
    text = "".join(f"{i} ü🦊 " for i in range(60)).strip()
    play(server, *[action for byte in text.encode() for action in (byte, Wait(0.004))])
    person.say("Count")
    for _ in range(3):
        person.page.wait_for_timeout(350)
        person.page.reload()
    person.done()
    assert answer_of(person)["content"] == text and person.asked("POST", POST) == 1


def test_the_tab_is_closed_and_another_opened(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    path = urlsplit(person.page.url).fragment
    person.page.close(run_before_unload=False)
    go_on()
    tab = person.tab(f"/#{path}")
    check_whole(tab, "Hm ü")
    assert person.asked("POST", POST) == 1


def test_spinners_of_conversations_that_are_not_shown(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    person.page.goto(person.url + "/#/")
    person.page.reload()
    person.page.get_by_role("img", name=SPINNER).wait_for()
    lookups = person.asked("POST", LOOKUP)
    person.page.evaluate("() => { for (let i = 0; i < 5; i++) document.dispatchEvent(new Event('visibilitychange')); }")
    go_on()
    person.page.get_by_role("img", name=SPINNER).wait_for(state="detached")
    assert person.asked("POST", LOOKUP) - lookups <= 1, "one discovery at a time"
    person.items.first.get_by_role("link").click()
    check_whole(person, "Hm ü")


def test_spinners_need_no_answer_of_the_server(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    for path in (LOOKUP, f"{STREAM}?*"):
        person.context.route(f"**{path}", lambda route: route.abort())
    person.page.goto(person.url + "/#/")
    person.page.reload()
    person.page.get_by_role("img", name=SPINNER).wait_for()
    go_on()


def test_what_came_last_is_written_when_the_page_goes(server: LiveServer, person: Person) -> None:
    """A quarter of a second of text waits to be written at any time; a reload doesn't wait for it."""
    event = gate(server)
    play(server, text_ids("early "), Wait(0.6), text_ids("last"), ScriptGate(event), text_ids(" end"))
    person.say("Hello")
    person.page.wait_for_function("() => document.querySelector('article.assistant')?.innerText.includes('last')")
    with person.page.expect_request(f"**{STREAM}?*") as sent:
        person.page.reload()
    offset = int(parse_qs(urlsplit(sent.value.url).query)["from"][0])
    (row,) = person.stored("streams")
    with httpx.stream("GET", f"{server.url}{STREAM}?conv_id={row['conversation']}::toy&from={offset}") as stream:
        assert not next(stream.iter_raw()).startswith(b'data: {"id"'), "only signs of life are new"
    server.on_loop(event.set)
    person.shows("early last end")


def test_what_is_known_before_the_request_is_sent(server: LiveServer, person: Person) -> None:
    seen: list[dict[str, Any]] = []

    def look(route: Any) -> None:
        seen.extend(person.stored("streams"))
        route.continue_()

    person.page.route(f"**{POST}", look)
    server.on_loop(server.engine.always, text_ids("ok"))
    person.ask("Hello")
    ((row,), (conversation,)) = seen, person.stored("conversations")
    assert (row["conversation"], row["model"], row["offset"]) == (conversation["id"], "toy", 0)


def test_text_and_offset_always_fit(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    person.page.wait_for_timeout(500)
    (row,), pieces = person.stored("streams"), person.stored("pieces")
    with httpx.stream("GET", f"{server.url}{STREAM}?conv_id={row['conversation']}::toy&from=0") as stream:
        sent = b""
        for part in stream.iter_raw():
            sent += part
            if len(sent) >= row["offset"]:
                break
    events = [json.loads(line[6:]) for line in sent[: row["offset"]].split(b"\n") if line.startswith(b"data: ")]
    told = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert told == "".join(piece["delta"].get("content", "") for piece in pieces) == FIRST
    assert sent[: row["offset"]].endswith(b"\n\n")
    go_on()
    check_whole(person, "Hm ü")


def test_a_broken_wire(server: LiveServer, meet: Meet) -> None:
    with wire_to(server.url) as wire:
        person = meet(url=wire.url)
        person.open()
        go_on = half(server, person)
        wire.cut(mends=False)
        person.page.get_by_text("The connection broke").wait_for()
        go_on()
        wire.mend()
        check_whole(person, "Hm ü")
    assert person.asked("POST", POST) == 1


def test_a_wire_that_breaks_before_the_answer_begins(server: LiveServer, meet: Meet) -> None:
    with wire_to(server.url) as wire:
        person = meet(url=wire.url)
        person.open()
        event = gate(server)
        play(server, ScriptGate(event), text_ids(WHOLE))
        person.say("Hello")
        server.on_loop(lambda: None)
        person.page.wait_for_timeout(400)
        wire.cut()
        server.on_loop(event.set)
        check_whole(person)
    assert person.asked("POST", POST) == 1


def test_503_is_asked_again_every_two_seconds(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    times: list[float] = []

    def busy(route: Any) -> None:
        times.append(time.monotonic())
        if len(times) < 3:
            route.fulfill(status=503, json={"error": {"message": "Stream owner model is loading", "code": 503}})
        else:
            route.continue_()

    person.context.route(f"**{STREAM}?*", busy)
    person.page.reload()
    person.page.get_by_text("Waiting for the model").wait_for()
    go_on()
    check_whole(person, "Hm ü")
    assert all(1.8 < later - sooner < 3.5 for sooner, later in itertools.pairwise(times))


def test_an_offset_that_is_lost_starts_anew(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    asked: list[str] = []
    person.page.wait_for_timeout(400)

    def lost(route: Any) -> None:
        offset = parse_qs(urlsplit(route.request.url).query)["from"][0]
        asked.append(offset)
        if offset != "0":
            route.fulfill(status=400, json={"error": {"message": "gone", "code": "stream_offset_lost"}})
        else:
            route.continue_()

    person.context.route(f"**{STREAM}?*", lost)
    person.page.reload()
    person.page.get_by_text("«one»").wait_for()
    go_on()
    check_whole(person, "Hm ü")
    assert asked[0] != "0" and set(asked[1:]) == {"0"}


def test_bytes_that_are_gone_for_good(server: LiveServer, person: Person) -> None:
    half(server, person)
    person.page.wait_for_timeout(400)
    gone = {"error": {"message": "gone", "code": "stream_offset_lost"}}
    person.context.route(f"**{STREAM}?*", lambda route: route.fulfill(status=400, json=gone))
    person.page.reload()
    person.page.get_by_text("Parts of this answer are lost").wait_for()
    assert answer_of(person)["content"] == FIRST.rstrip(), "what was there stays"
    person.button("Continue this answer").wait_for()


def test_a_stream_that_the_server_has_forgotten(server: LiveServer, person: Person) -> None:
    half(server, person)
    person.page.wait_for_timeout(400)
    (row,) = person.stored("streams")
    server.on_loop(server.services.sessions.of(NOBODY).stop, f"{row['conversation']}::toy")
    person.page.get_by_text("The server no longer has this answer").wait_for()
    assert answer_of(person)["content"] == FIRST.rstrip() and person.stored("streams") == []


def visible(tab: Tab) -> None:
    tab.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")


def test_back_in_sight_a_silent_reader_is_kicked_after_a_second(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    server.loop.call_soon_threadsafe(time.sleep, 2.2)  # nothing comes, not even a sign of life
    begun = time.monotonic()
    with person.page.expect_request(f"**{STREAM}?*"):
        visible(person)
    assert 0.9 < time.monotonic() - begun < 2.2
    go_on()
    check_whole(person, "Hm ü")


def test_back_in_sight_a_living_reader_is_left_alone(server: LiveServer, person: Person) -> None:
    event = gate(server)
    play(server, text_ids("«one»"), *[a for _ in range(16) for a in (120, Wait(0.1))], ScriptGate(event))
    person.say("Hello")
    person.page.get_by_text("«one»").wait_for()
    visible(person)
    person.page.wait_for_timeout(1400)
    assert person.asked("GET", STREAM) == 0
    server.on_loop(event.set)
    person.done()


def test_two_tabs_one_writes_and_the_other_reads_along(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    other = person.tab("/#" + urlsplit(person.page.url).fragment)
    other.page.get_by_text("«one»").wait_for()
    other.page.locator("article.running").wait_for()
    assert other.button("Stop").count() == 1
    go_on()
    check_whole(person, "Hm ü")
    other.page.get_by_text("Énd 🦊").wait_for()
    other.done()
    assert person.asked("GET", STREAM) == 0 and person.asked("POST", POST) == 1


def test_the_tab_that_writes_dies(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    other = person.tab("/#" + urlsplit(person.page.url).fragment)
    other.page.locator("article.running").wait_for()
    person.page.close(run_before_unload=False)
    go_on()
    check_whole(other, "Hm ü")
    assert person.asked("GET", STREAM) == 1 and person.asked("POST", POST) == 1


def test_stop_in_the_tab_that_reads_along(server: LiveServer, person: Person) -> None:
    half(server, person)
    other = person.tab("/#" + urlsplit(person.page.url).fragment)
    other.page.locator("article.running").wait_for()
    other.button("Stop").click()
    other.done()
    person.done()
    assert "Stopped." in person.answer.inner_text() and answer_of(other)["finish"] == "stopped"
    assert person.asked("DELETE", STREAM) == 1 and person.asked("GET", STREAM) == 0


def test_a_conversation_begun_in_one_tab_appears_in_the_other(server: LiveServer, person: Person) -> None:
    other = person.tab()
    go_on = half(server, person)
    other.page.get_by_role("img", name=SPINNER).wait_for()
    go_on()
    check_whole(person, "Hm ü")
    other.page.get_by_role("img", name=SPINNER).wait_for(state="detached")
    assert other.items.inner_text().strip() == "Hello"


def test_the_model_is_that_of_the_beginning(server: LiveServer, person: Person) -> None:
    go_on = half(server, person)
    person.page.evaluate("() => localStorage.setItem('imp.model', 'another')")
    with person.page.expect_request(f"**{STREAM}?*") as sent:
        person.page.reload()
    (row,) = person.stored("streams")
    assert parse_qs(urlsplit(sent.value.url).query)["conv_id"] == [f"{row['conversation']}::toy"]
    go_on()
    check_whole(person, "Hm ü")


def test_a_conversation_that_another_tab_deletes(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ok"))
    person.ask("Hello")
    other = person.tab("/#" + urlsplit(person.page.url).fragment)
    other.done()
    person.button("Delete Hello").focus()
    person.page.keyboard.press("Enter")
    person.button("Delete").click()
    other.page.get_by_role("heading", name="What shall we work on?").wait_for()
    other.ask("Anew")
    assert len(other.stored("conversations")) == 1


def test_a_deleted_conversation_stays_deleted(server: LiveServer, person: Person) -> None:
    half(server, person)
    person.button("Delete Hello").focus()
    person.page.keyboard.press("Enter")
    with person.page.expect_request(lambda r: r.method == "DELETE"):
        person.button("Delete").click()
    person.lists(0)
    person.page.wait_for_timeout(400)
    assert [json.dumps(person.stored(s)) for s in ("conversations", "messages", "pieces", "streams")] == ["[]"] * 4
