"""/docs: the same look, offline, and a form for every route."""

from __future__ import annotations

import json

import httpx
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.browser.conftest import Meet
from tests.browser.person import Person


def reader(meet: Meet) -> Person:
    person = meet()
    person.open("/docs")
    person.page.locator("details.route").first.wait_for()
    return person


def test_a_form_for_every_route(server: LiveServer, meet: Meet) -> None:
    person = reader(meet)
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"].values()
    methods = [one for item in paths for one in item.values() if isinstance(one, dict) and "operationId" in one]
    operations = {one["operationId"] for one in methods}
    assert len(operations) > 50
    shown = person.page.evaluate(
        """() => [...document.querySelectorAll("details.route[data-operation]")].map((one) => {
            one.open = true;
            return one.dataset.operation;
        })"""
    )
    assert set(shown) == operations and len(shown) == len(operations)
    person.page.wait_for_function("n => document.querySelectorAll('.form').length === n", arg=len(operations))
    assert person.page.locator(".form button.primary").count() == len(operations)
    sent = [one for one in methods if "application/json" in one.get("requestBody", {}).get("content", {})]
    assert person.page.locator(".form textarea").count() == len(sent)


def test_a_route_is_tried(server: LiveServer, meet: Meet) -> None:
    person = reader(meet)
    person.page.get_by_role("searchbox", name="Filter routes").fill("/tokenize")
    route = person.page.locator('[data-operation="imp_native.tokenize"]')
    route.locator("summary").first.click()
    route.get_by_role("textbox", name="Body").fill('{"content": "ab"}')
    route.get_by_role("button", name="Send").click()
    person.says("200 application/json")
    assert json.loads(route.locator(".result").inner_text()) == {"tokens": [97, 98]}
    route.get_by_role("textbox", name="Body").fill("{")
    route.get_by_role("button", name="Send").click()
    person.says("The body isn't JSON")
    route.get_by_role("textbox", name="Body").fill('{"content": {}}')
    route.get_by_role("button", name="Send").click()
    route.locator(".result-status", has_text="400").wait_for()


def test_a_stream_and_a_path(server: LiveServer, meet: Meet) -> None:
    server.on_loop(server.engine.always, text_ids("streamed"))
    person = reader(meet)
    route = person.page.locator('[data-operation="openai_chat.create_chat_completion"]')
    if not route.count():
        route = person.page.locator("details.route", has_text="/v1/chat/completions").first
    route.locator("summary").first.click()
    body = {"model": "toy", "messages": [{"role": "user", "content": "x"}], "stream": True}
    route.get_by_role("textbox", name="Body").fill(json.dumps(body))
    route.get_by_role("button", name="Send").click()
    route.get_by_text("[DONE]").wait_for()
    route = person.page.locator('[data-operation="openai_models.retrieve_model"]')
    route.locator("summary").first.click()
    route.get_by_role("textbox", name="model").fill("toy")
    route.get_by_role("button", name="Send").click()
    route.get_by_text('"id": "toy"').wait_for()


def test_the_same_colours(meet: Meet) -> None:
    person = meet(color_scheme="dark")
    person.open("/docs")
    colour = "() => getComputedStyle(document.body).backgroundColor"
    here = person.page.evaluate(colour)
    person.open("/")
    assert person.page.evaluate(colour) == here == "rgb(25, 26, 28)"
