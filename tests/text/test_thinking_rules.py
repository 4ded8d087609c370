"""Who thinks, and when: templates that mention a tag, what clients ask for, what the prompt's tail says."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.core import (
    ChatRequest,
    Message,
    OutputEvent,
    ReasoningDelta,
    ReasoningIntent,
    ResponseFormat,
    TextDelta,
    TextPart,
    Tool,
    Usage,
    pack_ids,
)
from imp_server.text.model import TextModel
from imp_server.text.thinking import think_tags

from tests.asked import made
from tests.dialects.replies import DIALECTS
from tests.toy import CHATML, OPEN_THINKING_CHATML, byte_model

CLOSES_BY_DEFAULT = CHATML.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n<think>{% if enable_thinking is not true %}</think>{% endif %}{% endif %}",
)
"""Thinks when it is told to."""
MODEL_ASKED = byte_model(CLOSES_BY_DEFAULT)
TAG_PAIRS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
]


def chat(**more: Any) -> ChatRequest:
    return made(ChatRequest, (Message("user", (TextPart("hi"),)),), **more)


def starts_thinking(model: TextModel, **more: Any) -> bool:
    plan = model.prepare_chat(chat(**more), 1).request.plan
    return plan.segments[plan.start].kind == "think"


@pytest.mark.parametrize(("opener", "closer"), TAG_PAIRS)
def test_a_template_that_mentions_a_tag_at_all_can_think(opener: str, closer: str) -> None:
    for mention in (f"{opener}{closer}", f"strips {closer} from history", f"opens {opener}"):
        tags = think_tags(f"{{# {mention} #}}")
        assert tags is not None and (tags.open, tags.close) == (opener, closer)
    assert think_tags("{{ messages }}") is None


STRUCTURED: list[dict[str, Any]] = [
    {"tools": (Tool("f"),)},
    {"response_format": ResponseFormat("json_object")},
    {"response_format": ResponseFormat("json_schema", schema={"type": "integer"})},
    {"response_format": ResponseFormat("regex", text="a")},
    {"response_format": ResponseFormat("grammar", text='root ::= "a"')},
    {"response_format": ResponseFormat("choice", choices=("a",))},
]


def test_thinking_is_on_by_default_and_opt_in_on_messages() -> None:
    model = byte_model(OPEN_THINKING_CHATML)
    assert starts_thinking(model)
    assert not starts_thinking(model, reasoning_default_on=False)
    assert starts_thinking(model, reasoning_default_on=False, reasoning=ReasoningIntent(enabled=True))


@pytest.mark.parametrize("more", STRUCTURED)
def test_thinking_is_off_for_bound_answers_unless_asked_for(more: dict[str, Any]) -> None:
    model = byte_model(OPEN_THINKING_CHATML)
    assert not starts_thinking(model, **more)
    assert starts_thinking(model, reasoning=ReasoningIntent(enabled=True), **more)


def test_an_explicit_wish_is_stamped_into_the_rendering() -> None:
    assert not starts_thinking(MODEL_ASKED), "the template closes by default, and its tail is the truth"
    assert starts_thinking(MODEL_ASKED, reasoning=ReasoningIntent(enabled=True))
    assert starts_thinking(MODEL_ASKED, reasoning=ReasoningIntent(effort="low"))
    assert not starts_thinking(MODEL_ASKED, reasoning=ReasoningIntent(enabled=True, budget_tokens=0))


ASKED: list[tuple[str, dict[str, Any], bool]] = [
    ("chat", {"enable_thinking": True}, True),
    ("chat", {"chat_template_kwargs": {"enable_thinking": True}}, True),
    ("chat", {"reasoning_effort": "high"}, True),
    ("chat", {"think_budget": 0.3}, True),
    ("chat", {"reasoning_budget_tokens": 20}, True),
    ("chat", {"reasoning_effort": "none"}, False),
    ("chat", {"think_budget": 0}, False),
    ("chat", {"enable_thinking": True, "reasoning_budget_tokens": 0}, False),
    ("responses", {"reasoning": {"effort": "medium"}}, True),
    ("responses", {"enable_thinking": True}, True),
    ("responses", {"think_budget": 0.3}, True),
    ("responses", {"reasoning": {"effort": "none"}}, False),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 20}}, True),
    ("messages", {"thinking": {"type": "adaptive"}}, True),
    ("messages", {"thinking": {"type": "disabled"}}, False),
]


@pytest.mark.parametrize(("name", "fields", "thinks"), ASKED)
def test_every_field_that_asks_for_thinking(name: str, fields: dict[str, Any], thinks: bool) -> None:
    dialect = DIALECTS[name]
    request = dialect.parse({"model": "toy", **dialect.body, dialect.limit: 500, **fields})
    plan = MODEL_ASKED.prepare_chat(request, 1).request.plan
    assert (plan.segments[plan.start].kind == "think") is thinks


@pytest.mark.parametrize(("tools", "limit"), [((), 8), ((Tool("f"),), 256)])
def test_an_opener_nobody_asked_for_is_found_among_the_first_tokens(tools: Any, limit: int) -> None:
    model = byte_model(CLOSES_BY_DEFAULT, control=("<|im_end|>", "<|im_start|>", "<think>", "</think>"))
    opener, closer = 258, 259

    def reply(lead: int) -> list[OutputEvent]:
        session = model.prepare_chat(chat(tools=tools, reasoning=ReasoningIntent(enabled=False)), 1).session
        ids = [*b" " * lead, opener, *b"hm", closer, *b"so"]
        return session.push(0, pack_ids(ids)) + session.finish(0, "stop", Usage())

    thought = [e.text for e in reply(limit - 1) if isinstance(e, ReasoningDelta)]
    assert thought == ["hm"]
    late = reply(limit)
    assert not any(isinstance(e, ReasoningDelta) for e in late)
    assert "".join(e.text for e in late if isinstance(e, TextDelta)).strip() == "hmso"


@pytest.mark.parametrize(("opener", "closer"), TAG_PAIRS)
@pytest.mark.parametrize("tools", [(), (Tool("f"),)])
@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_a_closer_of_thinking_that_the_prompt_has_closed_is_no_text(
    opener: str, closer: str, tools: Any, cut: int
) -> None:
    model = byte_model(CLOSES_BY_DEFAULT.replace("<think>", opener).replace("</think>", closer))
    for written, said in (
        (f"{closer}\n\nThe answer.", "The answer."),
        (f"\n{closer} The answer.", "The answer."),
        (f"I see.\n{closer}\n\nThe answer.", "I see.\n\n\nThe answer."),
        (f"{closer}{closer}a{closer}b", "ab"),
        ("The answer.", "The answer."),
        (f"a{closer[:-1]}", f"a{closer[:-1]}"),
    ):
        prepared = model.prepare_chat(chat(tools=tools), 1)
        data = list(written.encode())
        pieces = [pack_ids(data[i : i + cut]) for i in range(0, len(data), cut)]
        events = [e for piece in pieces for e in prepared.session.push(0, piece)]
        events += prepared.session.finish(0, "stop", Usage())
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == said
        assert not any(isinstance(e, ReasoningDelta) for e in events)


def test_a_bound_value_may_spell_the_closer() -> None:
    form = ResponseFormat("json_schema", schema={"const": "a</think>b"})
    session = MODEL_ASKED.prepare_chat(chat(response_format=form), 1).session
    events = session.push(0, pack_ids(list(b'"a</think>b"'))) + session.finish(0, "stop", Usage())
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == '"a</think>b"'
