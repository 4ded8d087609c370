"""Variables that the configuration gives to every prompt (model.chat_template_kwargs), weaker than a request's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from imp_server.config import Config
from imp_server.core import ConfigError, ReasoningIntent

from tests.text.asking import chat, message
from tests.toy import byte_model

SHOWS = (
    "{{ tone }}|{{ reasoning_effort }}|{{ enable_thinking }}{% if add_generation_prompt %}"
    "{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}{% endif %}"
)


def shown(variables: dict[str, Any], **asked: Any) -> str:
    config = Config.of({"model.chat_template_kwargs": json.dumps(variables)})
    model = byte_model(SHOWS, config=config)
    wanted = chat(message("user", "hi"), **asked)
    prepared, text = model.prepare_chat(wanted, 1), model.apply_template(wanted)
    assert prepared.prompt_text == text and model.count(wanted) == len(prepared.request.ids) // 4
    return text.partition("<think>")[0]


def test_the_request_is_stronger() -> None:
    assert shown({"tone": "dry", "reasoning_effort": "low"}) == "dry|low|True"
    asked = {"template_kwargs": {"tone": "warm"}, "reasoning": ReasoningIntent(effort="high")}
    assert shown({"tone": "dry", "reasoning_effort": "low"}, **asked) == "warm|high|True"


def test_thinking_is_as_configured_where_a_request_says_nothing() -> None:
    off = {"enable_thinking": False}
    assert shown(off) == "||False"
    assert shown(off, reasoning=ReasoningIntent(enabled=True)) == "||True"
    assert shown(off, reasoning=ReasoningIntent(effort="low")) == "|low|True"
    assert shown({"enable_thinking": True}, reasoning=ReasoningIntent(enabled=False)) == "||False"


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"a"}'])
def test_garbage_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.chat_template_kwargs"):
        byte_model(config=Config.of({"model.chat_template_kwargs": text}))
