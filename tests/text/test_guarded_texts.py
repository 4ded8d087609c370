"""Whose text may spell a token that the template reads, as tags of thinking: an assistant's own, nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.core import ChatRequest, Message, TextPart, Tool, ToolCall
from imp_server.text.model import TextModel

from tests.asked import made
from tests.toy import byte_model

TAGS = ("<think>", "</think>")
TYPED = "a<think>b</think>c"
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ note or '' }}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{{ m.name or '' }}{{ m.tool_call_id or '' }}"
    "{% if m.reasoning_content %}{{ m.reasoning_content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}{# <think> </think> #}"
)


def model(control: bool) -> TextModel:
    """`control`: the tags are control tokens; else they are added ones that text may spell."""
    tokens: dict[str, Any] = {"control": ("<|im_end|>", *TAGS)} if control else {"added": TAGS}
    return byte_model(TEMPLATE, **tokens)


def tags_in(text_model: TextModel, *messages: Message, **more: Any) -> int:
    """Tokens of the tags in the prompt."""
    prepared = text_model.prepare_chat(made(ChatRequest, messages, **more), 1)
    ids = [i for i, text in text_model.vocabulary.special_texts.items() if text in TAGS]
    ids += [t.id for t in text_model.tokenizer.added if t.text in TAGS]
    found = text_model.prompts.chat(made(ChatRequest, messages, **more)).ids.tolist()
    assert prepared.request.ids
    return sum(i in ids for i in found)


def said(role: Any, text: str, **more: Any) -> Message:
    return Message(role, (TextPart(text),), **more)


CALL = ToolCall("call_1", "f", '{"x": "<think>"}')
NOT_ITS_OWN: dict[str, tuple[tuple[Message, ...], dict[str, Any]]] = {
    "user": ((said("user", TYPED),), {}),
    "system": ((said("system", TYPED), said("user", "x")), {}),
    "result": ((said("user", "x"), Message("assistant", (), tool_calls=(ToolCall("call_1", "f", "{}"),)),
                said("tool", TYPED, tool_call_id="call_1")), {}),
    "name": ((said("user", "x", name=TYPED),), {}),
    "tool": ((said("user", "x"),), {"tools": (Tool("f", TYPED),)}),
    "variable": ((said("user", "x"),), {"template_kwargs": {"note": TYPED}}),
}  # fmt: skip


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("whose", NOT_ITS_OWN)
def test_what_others_type_stays_text(whose: str, control: bool) -> None:
    messages, more = NOT_ITS_OWN[whose]
    text_model = model(control)
    assert tags_in(text_model, *messages, **more) == 0
    assert TYPED in text_model.apply_template(made(ChatRequest, messages, **more))


@pytest.mark.parametrize(
    "message",
    [said("assistant", TYPED), said("assistant", "x", reasoning=TYPED), Message("assistant", (), tool_calls=(CALL,))],
)
def test_an_assistants_own_tags_are_read_unless_they_are_control_tokens(message: Message) -> None:
    asked = (said("user", "x"), message, said("user", "y"))
    assert tags_in(model(False), *asked) == (1 if message.tool_calls else 2)
    assert tags_in(model(True), *asked) == 0
