"""Where a model starts, what its thinking may cost, and the channels its output is read by."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from imp_server.config import Config
from imp_server.core import (
    InvalidRequest,
    ReasoningIntent,
    Tool,
    unpack_ids,
)

from tests.text.asking import HI, chat, message
from tests.toy import CHATML, CONTROL_TOKENS, OPEN_THINKING_CHATML, THINKING_CHATML, byte_model

THINK = ("<think>", "</think>")


def thinks(template: str, reasoning: ReasoningIntent = ReasoningIntent(), **more: Any) -> tuple[int, str, int]:  # noqa: B008
    model = byte_model(template, control=(*CONTROL_TOKENS, *THINK))
    prepared = model.prepare_chat(chat(message("user", "hi"), reasoning=reasoning, **more), 1)
    return prepared.request.plan.start, prepared.prompt_text, prepared.request.plan.think_budget


def test_the_tail_of_the_prompt_decides() -> None:
    assert thinks(OPEN_THINKING_CHATML)[0] == 1
    assert thinks(THINKING_CHATML)[0] == 0
    start, text, _ = thinks(THINKING_CHATML, ReasoningIntent(enabled=False))
    assert start == 0 and text.endswith("<think>\n\n</think>\n\n")
    start, text, _ = thinks(OPEN_THINKING_CHATML, ReasoningIntent(enabled=False))
    assert start == 0 and text.endswith("<think>\n</think>\n\n")
    start, text, _ = thinks(OPEN_THINKING_CHATML, tools=(Tool("f"),))
    assert start == 0 and text.endswith("</think>\n\n")


def test_budget() -> None:
    assert thinks(OPEN_THINKING_CHATML, max_tokens=260)[2] == 130
    assert thinks(OPEN_THINKING_CHATML, max_tokens=600)[2] == 300
    assert thinks(OPEN_THINKING_CHATML, max_tokens=2000)[2] == 1000
    assert thinks(OPEN_THINKING_CHATML, ReasoningIntent(budget_fraction=0.9), max_tokens=600)[2] == 600 - 256
    assert thinks(OPEN_THINKING_CHATML, ReasoningIntent(budget_fraction=0.9), max_tokens=100)[2] == 50
    assert thinks(OPEN_THINKING_CHATML, ReasoningIntent(budget_fraction=1.0), max_tokens=100)[2] == -1
    assert thinks(OPEN_THINKING_CHATML, ReasoningIntent(budget_tokens=33), max_tokens=500)[2] == 33
    assert thinks(OPEN_THINKING_CHATML, ReasoningIntent(budget_tokens=0), max_tokens=500)[0] == 0


def test_an_effort_is_a_share_of_max_tokens() -> None:
    shares = {
        effort: thinks(OPEN_THINKING_CHATML, ReasoningIntent(effort=effort), max_tokens=1000)[2]
        for effort in ("minimal", "low", "medium", "high", "xhigh", "max")
    }
    # The answer's reserve is more than what the higher efforts leave.
    assert shares == {"minimal": 100, "low": 250, "medium": 500, "high": 744, "xhigh": 744, "max": 744}


def closer_of(last: str | None, *, knob: str = "") -> str:
    model = byte_model(
        OPEN_THINKING_CHATML, control=(*CONTROL_TOKENS, *THINK), config=Config.of({"reasoning.budget_message": knob})
    )
    plan = model.prepare_chat(chat(message("user", "hi"), reasoning=ReasoningIntent(budget_message=last)), 1)
    return model.detokenize(unpack_ids(plan.request.plan.think_closer), skip_special=False)


def test_the_last_thought_of_thinking_that_is_closed_by_force() -> None:
    assert closer_of(None) == "\n</think>"
    assert closer_of(" Time is up.") == " Time is up.\n</think>"
    assert closer_of(None, knob="Enough!") == "Enough!\n</think>"
    assert closer_of("", knob="Enough!") == "\n</think>", "the client may switch the server's off"
    with pytest.raises(InvalidRequest, match="</think>"):
        closer_of("so </think> it is")


def test_reasoning_format_none_keeps_the_tags() -> None:
    model = byte_model(
        THINKING_CHATML, control=(*CONTROL_TOKENS, *THINK), config=Config.of({"reasoning.format": "none"})
    )
    session = model.prepare_chat(HI, 1).session
    ids = [259, *b"hm", 260, *b"ok"]
    events = session.push(0, b"".join(i.to_bytes(4, "little") for i in ids))
    assert [type(e).__name__ for e in events] == ["TextDelta"]
    assert events[0].text == "<think>hm</think>ok"  # type: ignore[union-attr]


HARMONY = ("<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>")
HARMONY_TEMPLATE = (
    "{# <|channel|>analysis<|message|> #}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"
    "{% endfor %}<|start|>assistant"
)


def spoken(prepared: Any, model: Any, text: str) -> list[tuple[str, str]]:
    ids = model.tokenize(text)
    events = prepared.session.push(0, b"".join(i.to_bytes(4, "little") for i in ids))
    return [(type(e).__name__, e.text) for e in events]


@pytest.mark.parametrize("final", ["final", "final <|constrain|>json"])
def test_harmony_channels(final: str) -> None:
    model = byte_model(HARMONY_TEMPLATE, control=(*HARMONY, "<|constrain|>"))
    prepared = model.prepare_chat(HI, 1)
    written = (
        "<|channel|>analysis<|message|>Hm, <|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
        f"<|start|>assistant<|channel|>analysis<|message|> hm<|end|><|start|>assistant<|channel|>{final}<|message|>Yes."
        "<|return|>"
    )
    assert spoken(prepared, model, written) == [
        ("ReasoningDelta", "Hm,"),
        ("TextDelta", "Let me see."),
        ("ReasoningDelta", "hm"),
        ("TextDelta", "Yes."),
    ]
    assert 258 not in prepared.request.plan.end_ids and 256 in prepared.request.plan.end_ids
    closer = unpack_ids(prepared.request.plan.think_closer)
    assert model.detokenize(closer, skip_special=False) == "<|end|><|start|>assistant<|channel|>final<|message|>"


def test_harmony_cut_in_thinking_does_not_spill() -> None:
    model = byte_model(HARMONY_TEMPLATE, control=HARMONY)
    prepared = model.prepare_chat(HI, 1)
    assert spoken(prepared, model, "<|channel|>analysis<|message|>Hm")[-1] == ("ReasoningDelta", "Hm")
    assert spoken(prepared, model, "<|end|><|start|>assistant") == []


def test_gemma4_channels() -> None:
    control = (*CONTROL_TOKENS, "<|channel>", "<channel|>")
    template = CHATML + "{% if enable_thinking is not true %}<|channel>thought\n<channel|>{% endif %}"
    model = byte_model(template, control=control)
    closed = model.prepare_chat(HI, 1)
    assert closed.request.plan.start == 0 and closed.prompt_text.endswith("<channel|>")
    thinks = msgspec.structs.replace(HI, reasoning=ReasoningIntent(enabled=True))
    prepared = model.prepare_chat(thinks, 1)
    assert spoken(prepared, model, "<|channel>thought\nHm\n<channel|>Yes") == [
        ("ReasoningDelta", "Hm"),
        ("TextDelta", "Yes"),
    ]
