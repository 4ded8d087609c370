"""Constraints with live validity, how sure the model was, the prompt as it sees it; and how the server is doing."""

from __future__ import annotations

import pytest
from imp_server.core import TokenLogprob
from imp_server.engine.client.scripted import Emit, text_ids

from tests.api.live_server import LiveServer
from tests.browser.person import Person
from tests.browser.test_chat import play


@pytest.fixture
def tester(person: Person) -> Person:
    person.page.get_by_role("link", name="Playground").click()
    person.page.get_by_text("Valid JSON schema").wait_for()
    return person


@pytest.mark.parametrize(
    ("kind", "bad", "why", "good"),
    [
        ("JSON schema", '{"type": ', "Not JSON", '{"type": "string"}'),
        ("JSON schema", '{"type": "strong"}', "strong", '{"enum": [1, 2]}'),
        ("Regex", "a(b", "", "a(b)?"),
        ("GBNF", 'root ::= "a" rest', "rest", 'root ::= "a"'),
    ],
)
def test_validity_as_it_is_typed(tester: Person, kind: str, bad: str, why: str, good: str) -> None:
    tester.page.get_by_role("radio", name=kind).check()
    field = tester.page.get_by_role("textbox", name="Constraint")
    verdict = tester.page.locator(".verdict")
    field.fill(bad)
    tester.page.locator('.verdict[data-ok="false"]').wait_for()
    assert why in verdict.inner_text() and field.get_attribute("aria-invalid") == "true"
    field.fill(good)
    tester.page.get_by_text(f"Valid {kind}").wait_for()
    assert field.get_attribute("aria-invalid") == "false"


def test_shades_and_alternatives(server: LiveServer, tester: Person) -> None:
    sure, unsure = ord("y"), ord("n")
    play(
        server,
        Emit([sure], [TokenLogprob(sure, -0.01, ((sure, -0.01), (unsure, -4.6)), 1)]),
        Emit([unsure], [TokenLogprob(unsure, -2.5, ((sure, -0.2), (unsure, -2.5)), 2)]),
    )
    tester.page.get_by_role("radio", name="No constraint").check()
    tester.button("Run").click()
    tokens = tester.page.get_by_role("region", name="Answer").locator(".token")
    tokens.nth(1).wait_for()
    assert [one.get_attribute("class") for one in tokens.all()[:2]] == ["token shade-0", "token shade-4"]
    tokens.nth(1).hover()
    rows = tester.page.locator(".alternatives tr")
    assert [row.inner_text().split("\t")[:2] for row in rows.all()] == [['"y"', "81.9 %"], ['"n" ✓', "8.2 %"]]
    tokens.nth(0).focus()
    assert "99.0 %" in rows.first.inner_text()


def test_the_constraint_is_sent(server: LiveServer, tester: Person) -> None:
    server.on_loop(server.engine.always, text_ids("ab"))
    tester.page.get_by_role("radio", name="Regex").check()
    tester.page.get_by_role("textbox", name="Constraint").fill("ab")
    with tester.page.expect_request("**/v1/chat/completions") as sent:
        tester.button("Run").click()
    body = sent.value.post_data_json
    assert (body["guided_regex"], body["logprobs"], body["top_logprobs"]) == ("ab", True, 5)


def test_the_prompt_as_the_model_sees_it(tester: Person) -> None:
    tester.page.get_by_role("textbox", name="Prompt").fill("Hé <b>")
    tester.button("Show").click()
    region = tester.page.get_by_role("region", name="Prompt as the model sees it")
    region.locator(".token").first.wait_for()
    pieces = region.locator(".token").all_inner_texts()
    assert pieces[0] == "<|im_start|>" and "<c3>" in pieces and "H" in pieces
    assert f"{len(pieces)} tokens" in tester.page.get_by_role("status").all_inner_texts()


def test_status(server: LiveServer, person: Person) -> None:
    server.on_loop(server.engine.always, text_ids("some words"))
    person.ask("Hello")
    person.page.get_by_role("link", name="Status").click()
    person.page.get_by_text("tokens written in all").wait_for()
    facts = person.page.locator(".facts").inner_text()
    for words in (
        "rows at work",
        "requests waiting",
        "of prompt tokens from the cache",
        "blocks pinned",
        "blocks in the lower tier",
        "of drafts accepted",
    ):
        assert words in facts
    assert person.page.locator(".rows tbody tr").count() == 8
    person.page.locator(".chart .curve").wait_for(state="attached")
    assert "Tokens per second over the last" in str(person.page.locator(".chart").get_attribute("aria-label"))


def test_status_reads_what_the_server_tells(server: LiveServer, person: Person) -> None:
    """Every name that the tab shows is one of /metrics, or one that an engine with a cache adds."""
    told = person.page.evaluate(
        """async () => {
            const { readMetrics } = await import("./ui/status.js");
            return readMetrics(await (await fetch("metrics")).text());
        }"""
    )
    names = {"imp_queue_running", "imp_queue_waiting", "imp_tokens_cached_total", "imp_tokens_prompt_total"}
    names |= {"imp_tokens_completion_total", "imp_kv_host_spill_blocks"}
    names |= {f"llamacpp:spec_decode_num_{kind}_tokens_total" for kind in ("draft", "accepted")}
    assert names <= set(told)
    assert person.page.evaluate(
        """async () => {
            const { readMetrics } = await import("./ui/status.js");
            return readMetrics('# HELP a\\na{x="1 2"} 1.5\\na{x="}"} 2e1\\nb -3\\nc NaN\\n');
        }"""
    ) == {"a": 21.5, "b": -3}
