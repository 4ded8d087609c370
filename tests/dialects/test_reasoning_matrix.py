"""Reasoning and answer never mix: every way thinking can begin, be limited, be cut, on every dialect, both transports.

The expectation is worked out from the bytes alone; the replies come from the whole text side and a scripted engine.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.config import Config
from imp_server.dialects.anthropic.thinking import signature

from tests.dialects.replies import DIALECTS, run
from tests.toy import CHATML, OPEN_THINKING_CHATML, THINKING_CHATML, byte_model

THOUGHT, ANSWER = "hm… <b> STOP", "é 4 </b> STOP x"
CLOSER = "\n</think>"
"""What the engine writes to end thinking."""
STOPPED = ANSWER.partition("STOP")[0]

# How thinking begins -> template, whether thinking is asked for, what the model writes before its thought.
BEGINNINGS: dict[str, tuple[str, bool, str | None]] = {
    "opened in the prompt": (OPEN_THINKING_CHATML, True, ""),
    "opened by the model": (THINKING_CHATML, True, "<think>\n"),
    "opened unasked": (THINKING_CHATML, False, "<think>\n"),
    "a closed pair": (OPEN_THINKING_CHATML, False, None),
    "none": (CHATML, True, None),
}
FREE = Config.of({"reasoning.think_budget": 1.0})
"""No limit of the server's own: the tests set theirs."""
TEXTS = {
    template: ModelTextSide(byte_model(template, config=FREE, context_length=4096))
    for template in (CHATML, THINKING_CHATML, OPEN_THINKING_CHATML)
}
KEPT = ModelTextSide(byte_model(THINKING_CHATML, config=Config.of({"reasoning.format": "none"}), context_length=4096))


def body_of(name: str, *, thinks: bool, budget: int | None, max_tokens: int | None) -> dict[str, Any]:
    dialect = DIALECTS[name]
    body: dict[str, Any] = {"model": "toy", **dialect.body, dialect.limit: max_tokens or 600}
    if dialect.stops:
        body[dialect.stops] = ["STOP"]
    if name == "messages":
        enabled = {"type": "adaptive"} if budget is None else {"type": "enabled", "budget_tokens": budget}
        return body | {"thinking": enabled if thinks else {"type": "disabled"}}
    return body | {"enable_thinking": thinks} | ({} if budget is None else {"reasoning_budget_tokens": budget})


def script(opening: str | None, budget: int | None) -> tuple[str, str]:
    """(what the model writes, all that comes out): at the budget the closer is put in for the model."""
    if opening is None:
        return ANSWER, ANSWER
    thought = THOUGHT.encode()
    led = opening.partition("<think>")[2].encode()  # the newline behind the tag counts as thought
    if budget is None or budget > len(led + thought + CLOSER.encode()):
        text = f"{opening}{THOUGHT}{CLOSER}\n\n{ANSWER}"
        return text, text
    spent = (led + thought)[:budget].decode(errors="ignore").encode()[len(led) :]
    written = opening.encode() + spent + b"." * (budget - len(led + spent))
    return written.decode() + ANSWER, written.decode() + CLOSER + ANSWER


def expected(opening: str | None, out: str, max_tokens: int | None, *, stops: bool) -> tuple[set[str], str]:
    """(acceptable reasoning, answer) from the bytes: a tag that is cut in half may be kept or not."""
    text = out.encode()[:max_tokens].decode(errors="ignore")
    thought = ""
    if opening is not None:
        if not text.startswith(opening.rstrip()) and opening:
            return {""}, text  # cut inside the opening tag, which then was just text
        thought, closed, text = text.removeprefix(opening.rstrip()).partition("</think>")
        if not closed:
            return {_whole(thought).strip(), thought.strip()}, ""
        text = text.lstrip()
    return {thought.strip()}, text.partition("STOP")[0] if stops else text


def _whole(thought: str) -> str:
    """Without the beginning of a closer at its end."""
    return next((thought[:-n] for n in range(8, 0, -1) if thought.endswith("</think>"[:n])), thought)


def parts(name: str, reply: dict[str, Any]) -> tuple[str, str]:
    """(reasoning, answer)."""
    if name == "chat":
        message = reply["choices"][0]["message"]
        assert message.get("reasoning") == message.get("reasoning_content")
        return message.get("reasoning") or "", message["content"] or ""
    if name == "messages":
        thoughts = [b for b in reply["content"] if b["type"] == "thinking"]
        assert all(block["signature"] == signature(block["thinking"]) for block in thoughts)
        return _joined(thoughts, "thinking"), _joined([b for b in reply["content"] if b["type"] == "text"], "text")
    items = reply["output"]
    thought = [part for item in items if item["type"] == "reasoning" for part in item["content"]]
    return _joined(thought, "text"), _joined([p for i in items if i["type"] == "message" for p in i["content"]], "text")


def _joined(blocks: list[dict[str, Any]], key: str) -> str:
    return "".join(block[key] for block in blocks)


def detail_of(name: str, reply: dict[str, Any]) -> Any:
    return (reply["choices"][0] if name == "chat" else reply).get("imp_finish_detail")


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("beginning", list(BEGINNINGS))
def test_reasoning_and_answer_stay_apart(name: str, beginning: str) -> None:
    template, thinks, opening = BEGINNINGS[beginning]
    randoms = random.Random(f"{name} {beginning}")
    for budget, max_tokens in itertools.product((None, 1, 6), (None, 1, 4, 9, 14, 25, 33)):
        if budget is not None and not thinks:
            continue
        body = body_of(name, thinks=thinks, budget=budget, max_tokens=max_tokens)
        written, out = script(opening, budget)
        data = written.encode()
        wanted_thought, wanted = expected(opening, out, max_tokens, stops=DIALECTS[name].stops is not None)
        # Where the budget ends the engine has looked at each token by itself.
        edge = set() if budget is None else {len((opening or "").partition("\n")[0].encode()) + budget}
        replies = []
        for places in (set(), set(range(len(data))), *({randoms.randrange(60) for _ in range(6)} for _ in range(2))):
            reply = run(name, TEXTS[template], body, data, places | edge)
            where = f"budget {budget}, max_tokens {max_tokens}, cuts {sorted(places | edge)}"
            thought, answer = parts(name, reply)
            assert thought in wanted_thought and answer == wanted, where
            replies.append((thought, answer, detail_of(name, reply)))
            never_began = bool(thought) and not answer
            assert (detail_of(name, reply) == "reasoning_budget_exhausted") == never_began, where
        assert len(set(replies)) == 1


@pytest.mark.parametrize("name", list(DIALECTS))
def test_every_single_cut_of_the_same_tokens_says_the_same(name: str) -> None:
    template, thinks, opening = BEGINNINGS["opened by the model"]
    body = body_of(name, thinks=thinks, budget=None, max_tokens=None)
    data = script(opening, None)[0].encode()
    wanted = (THOUGHT, STOPPED if DIALECTS[name].stops else ANSWER)
    for place in range(1, len(data)):
        assert parts(name, run(name, TEXTS[template], body, data, {place})) == wanted, place


@pytest.mark.parametrize("name", list(DIALECTS))
def test_with_format_none_the_tags_stay_in_the_text(name: str) -> None:
    body = body_of(name, thinks=True, budget=None, max_tokens=None)
    data = b"<think>a</think>b"
    for places in (set(), set(range(len(data)))):
        assert parts(name, run(name, KEPT, body, data, places)) == ("", "<think>a</think>b")


def test_omitted_thinking_is_thought_and_not_shown() -> None:
    template, _, opening = BEGINNINGS["opened in the prompt"]
    body = body_of("messages", thinks=True, budget=None, max_tokens=None)
    body["thinking"]["display"] = "omitted"
    reply = run("messages", TEXTS[template], body, script(opening, None)[0].encode(), set())
    assert [block["type"] for block in reply["content"]] == ["thinking", "text"]
    assert reply["content"][0] == {"type": "thinking", "thinking": "", "signature": signature("")}
    assert reply["content"][1]["text"] == STOPPED
    assert reply["usage"]["output_tokens_details"]["thinking_tokens"] > 0
