"""The pinned part of a prompt against its slow twin: the conversation cut behind the marked block, rendered again."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import CacheIntent, ChatRequest, Message, TextPart, Tool, ToolCall
from imp_server.text.model import TextModel
from imp_server.text.templates import builtin_templates

from tests.text.test_templates import model as byte_level
from tests.toy import bpe_model

TEXTS = st.sampled_from(["You are kind.", "  led by blanks", "a", "<|im_end|>", "Größe 👋", "two\nlines", "x y z " * 9])
PARTS = st.lists(TEXTS, min_size=1, max_size=3)


@lru_cache
def models() -> list[TextModel]:
    names = [name for name in builtin_templates() if name != "none"]
    return [*(byte_level(name) for name in names), bpe_model()]


def conversation(texts: list[list[str]], mark: tuple[int, int]) -> ChatRequest:
    """System first, then turns."""
    roles = ["system", *(["user", "assistant"] * len(texts))]
    return ChatRequest(
        tuple(
            Message(roles[i], tuple(TextPart(t, cache_mark=(i, j) == mark) for j, t in enumerate(parts)))  # type: ignore[arg-type]
            for i, parts in enumerate(texts)
        )
    )


def cut(request: ChatRequest, mark: tuple[int, int]) -> ChatRequest:
    message = request.messages[mark[0]]
    last = msgspec.structs.replace(message, parts=message.parts[: mark[1] + 1])
    return msgspec.structs.replace(request, messages=(*request.messages[: mark[0]], last), add_generation_prompt=False)


def ids_of(model: TextModel, request: ChatRequest) -> list[int]:
    return list(memoryview(model.prepare_chat(request, 1).request.ids).cast("i"))


def n_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("index", range(8))
@settings(max_examples=25, deadline=None)
@given(st.lists(PARTS, min_size=2, max_size=4).filter(lambda texts: len(texts) % 2 == 0), st.data())
def test_the_place_in_the_prompt_equals_the_cut_rendering(
    index: int, texts: list[list[str]], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(texts) - 1))
    mark = (at, data.draw(st.integers(0, len(texts[at]) - 1)))
    model = models()[index]
    request = conversation(texts, mark)
    whole = ids_of(model, request)
    prepared = model.prepare_chat(request, 1).request
    pinned, spans = prepared.cache.pin_until, prepared.spans
    shorter = ids_of(model, cut(request, mark))
    common = n_common(whole, shorter)
    assert 0 < pinned <= len(whole)
    if mark[1] == len(texts[at]) - 1 and common == len(shorter):
        # What closes a turn in text, as llama2's [/INST], may or may not count; what was said always does.
        rest = model.detokenize(whole[min(pinned, common) : max(pinned, common)], skip_special=False)
        assert rest.strip() in ("", "[/INST]")
    elif at < 2 and spans[0].end == spans[0].start:
        assert pinned == spans[1].end, "a system message that went into the first turn is pinned with all of it"
    elif mark[1] < len(texts[at]) - 1:
        rest = model.detokenize(whole[pinned:common], skip_special=False)
        assert common >= pinned - 1 and len(rest.strip()) <= 2, "the block ends where the cut rendering departs"


def test_a_mark_within_a_message_pins_up_to_its_block() -> None:
    model = byte_level("chatml")
    request = conversation([["first", "second", "third"], ["hi"]], (0, 1))
    prepared = model.prepare_chat(request, 1).request
    ids = list(memoryview(prepared.ids).cast("i"))
    assert model.detokenize(ids[: prepared.cache.pin_until]).endswith("first\nsecond")


def test_the_last_mark_counts_and_tools_pin_everything() -> None:
    model = byte_level("chatml")
    both = ChatRequest(
        (
            Message("system", (TextPart("s", cache_mark=True), TextPart("t"))),
            Message("user", (TextPart("u", cache_mark=True),)),
            Message("assistant", (TextPart("a"),)),
            Message("user", (TextPart("q"),)),
        )
    )
    prepared = model.prepare_chat(both, 1).request
    assert prepared.cache.pin_until == prepared.spans[1].end
    tooled = msgspec.structs.replace(both, tools=(Tool("f", cache_mark=True),))
    prepared = model.prepare_chat(tooled, 1).request
    assert prepared.cache.pin_until == len(prepared.ids) // 4


def test_marks_for_an_hour_pin_as_far_as_they_stand() -> None:
    model = byte_level("chatml")
    system = (TextPart("long", True, for_hour=True), TextPart("short", True))
    chat = ChatRequest((Message("system", system), Message("user", (TextPart("q", cache_mark=True),))))
    prepared = model.prepare_chat(chat, 1).request
    ids = list(memoryview(prepared.ids).cast("i"))
    assert model.detokenize(ids[: prepared.cache.hour_until]).endswith("long")
    assert prepared.cache.pin_until == prepared.spans[1].end
    tooled = msgspec.structs.replace(chat, tools=(Tool("f", cache_mark=True, for_hour=True),))
    prepared = model.prepare_chat(tooled, 1).request
    assert prepared.cache.hour_until == prepared.spans[1].start < prepared.cache.pin_until
    whole = msgspec.structs.replace(chat, cache=CacheIntent(pin_prompt=True, for_hour=True))
    assert model.prepare_chat(whole, 1).request.cache.hour_until == len(ids)


def test_a_marked_call_pins_its_message() -> None:
    model = byte_level("chatml")
    for parts in ((), (TextPart("said"), TextPart("more", cache_mark=True))):
        call = ToolCall("call_1", "look_up", "{}", cache_mark=True)
        called = Message("assistant", parts, tool_calls=(call,))
        result = Message("tool", (TextPart("r"),), tool_call_id="call_1")
        request = ChatRequest((Message("user", (TextPart("u", cache_mark=True),)), called, result))
        prepared = model.prepare_chat(request, 1).request
        assert prepared.cache.pin_until == prepared.spans[1].end > prepared.spans[0].end
