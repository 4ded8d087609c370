"""Every template of the table: exact prompts, spans, safety, and tool calls that its own format reads back."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.config import Config
from imp_server.core import (
    CallArgs,
    CallStart,
    ChatRequest,
    ConfigError,
    Message,
    ReasoningIntent,
    TextPart,
    Tool,
    ToolCall,
    pack_ids,
    unpack_ids,
)
from imp_server.text.model import TextModel
from imp_server.text.templates import builtin_templates

from tests.asked import made
from tests.toy import byte_tokenizer

DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
DEEPSEEK += [f"<｜tool▁{n}｜>" for n in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")]
DEEPSEEK += [f"<｜tool▁{n}｜>" for n in ("outputs▁begin", "outputs▁end", "output▁begin", "output▁end")]
# Control tokens by template; the first is BOS, the second EOS.
CONTROL: dict[str, list[str]] = {
    "none": ["<s>", "</s>"],
    "chatml": ["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
    "llama2": ["<s>", "</s>"],
    "llama3": ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"],
    "nemotron": ["<s>", "</s>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"],
    "gemma": ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    "deepseek_r1": DEEPSEEK,
    "phi": ["<s>", "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"],
}
TOOL = Tool("look_up", "Looks a word up.", {"type": "object", "properties": {"word": {"type": "string"}}})
WITHOUT_TOOLS = {"none"}


@lru_cache
def model(name: str, more: tuple[str, ...] = ()) -> TextModel:
    tokenizer = byte_tokenizer((*CONTROL[name], *more))
    tokenizer.bos_id, tokenizer.eos_id = 256, 257
    return TextModel(tokenizer, {}, Config.of({"model.chat_template": name}), context_length=1 << 20)


def said(role: str, text: str, **more: Any) -> Message:
    return Message(role, (TextPart(text),), **more)  # type: ignore[arg-type]


TALK = (said("system", "Be nice."), said("user", "Hi"), said("assistant", "Hello!"), said("user", "Bye"))

EXACT = {
    "none": "Be nice.\nHi\nHello!\nBye",
    "chatml": (
        "<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "Hello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    ),
    "llama2": "<s>[INST] <<SYS>>\nBe nice.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]",
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe nice.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello!"
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "nemotron": (
        "<SPECIAL_10>System\nBe nice.\n<SPECIAL_11>User\nHi\n<SPECIAL_11>Assistant\nHello!<SPECIAL_12>\n"
        "<SPECIAL_11>User\nBye\n<SPECIAL_11>Assistant\n"
    ),
    "gemma": (
        "<bos><start_of_turn>user\nBe nice.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    ),
    "deepseek_r1": (
        "<｜begin▁of▁sentence｜>Be nice.<｜User｜>Hi<｜Assistant｜>Hello!<｜end▁of▁sentence｜><｜User｜>Bye"
        "<｜Assistant｜><think>\n"
    ),
    "phi": (
        "<|system|>\nBe nice.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n"
        "<|user|>\nBye<|end|>\n<|assistant|>\n"
    ),
}


def test_the_table_is_complete() -> None:
    assert set(builtin_templates()) == set(EXACT) == set(CONTROL)


@pytest.mark.parametrize("name", EXACT)
def test_exact_prompt(name: str) -> None:
    assert model(name).apply_template(ChatRequest(TALK)) == EXACT[name]


@pytest.mark.parametrize("name", EXACT)
def test_spans_hold_their_texts(name: str) -> None:
    text_model = model(name)
    request = text_model.prepare_chat(ChatRequest(TALK), 1).request
    ids = unpack_ids(request.ids).tolist()
    spans = request.spans
    assert [s.role for s in spans] == [m.role for m in TALK]
    assert spans[0].start == 0 and all(a.end == b.start for a, b in pairwise(spans))
    assert spans[-1].end <= len(ids)
    shown = [text_model.detokenize(ids[s.start : s.end], skip_special=False) for s in spans]
    texts = ["Be nice.", "Hi", "Hello!", "Bye"]
    for index, text in enumerate(texts):
        others = [t for i, t in enumerate(texts) if i != index]
        if spans[index].end > spans[index].start:  # a folded message shares the next one's span
            assert text in shown[index]
            assert not any(t in shown[index] for t in others[index:])


@pytest.mark.parametrize("name", EXACT)
def test_a_longer_conversation_begins_with_the_spans_of_the_shorter(name: str) -> None:
    text_model = model(name)
    short = text_model.prepare_chat(ChatRequest(TALK), 1).request
    long = text_model.prepare_chat(ChatRequest((*TALK, said("assistant", "x"), said("user", "y"))), 1).request
    end = short.spans[-1].end * 4
    assert short.ids[:end] == long.ids[:end] and end
    assert long.spans[: len(TALK)] == short.spans


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_only_the_template_writes_control_tokens(name: str, data: st.DataObject) -> None:
    words = [*CONTROL[name], "<", "|", "<|", "x", " ", "\n", "▁", "tool"]
    draw = st.lists(st.sampled_from(words), max_size=4).map("".join)
    text_model = model(name)
    quiet = ids_of(text_model, tuple(said(m.role, "q") for m in TALK))
    loud = ids_of(text_model, tuple(said(m.role, "q" + data.draw(draw) + "q") for m in TALK))
    assert [i for i in loud if i > 255] == [i for i in quiet if i > 255]


def ids_of(text_model: TextModel, messages: tuple[Message, ...], **more: Any) -> list[int]:
    return unpack_ids(text_model.prepare_chat(made(ChatRequest, messages, **more), 1).request.ids).tolist()


@pytest.mark.parametrize("name", sorted(set(EXACT) - WITHOUT_TOOLS))
def test_tools(name: str) -> None:
    text_model = model(name, ("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>") if name == "phi" else ())
    traits = text_model.prompts.default.traits
    assert traits.tools and traits.tool_role and not traits.arguments_as_text
    for messages in (TALK, TALK[1:]):
        text = text_model.apply_template(ChatRequest(messages, tools=(TOOL,)))
        assert text.count("Looks a word up.") == 1 and ("Be nice." in text) == (messages is TALK)


@pytest.mark.parametrize("name", sorted(set(EXACT) - WITHOUT_TOOLS))
@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.one_of(st.text(max_size=9), st.integers(), st.none()), max_size=3))
def test_calls_are_rendered_as_they_are_read(name: str, arguments: dict[str, Any]) -> None:
    """What the model is shown of its own calls is what the format of this template reads as that call."""
    text_model = model(name, ("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>") if name == "phi" else ())
    call = ToolCall("id", "look_up", json.dumps(arguments))
    asked = (said("user", "Hi"),)
    request = ChatRequest((*asked, Message("assistant", (), tool_calls=(call,))), tools=(TOOL,))
    prepared = text_model.prepare_chat(request, 1)
    before = text_model.prepare_chat(ChatRequest(asked, tools=(TOOL,), reasoning=ReasoningIntent(enabled=False)), 1)
    span = prepared.request.spans[1]
    written = unpack_ids(prepared.request.ids).tolist()[span.start : span.end]
    answer = written[_n_common_head(text_model, written) :]
    events = before.session.push(0, pack_ids(_up_to_end(answer, text_model.vocabulary.end_ids)))
    names = [e.name for e in events if isinstance(e, CallStart)]
    assert names == ["look_up"]
    assert json.loads("".join(e.text for e in events if isinstance(e, CallArgs))) == arguments


def _n_common_head(text_model: TextModel, written: list[int]) -> int:
    """Length of what opens an assistant turn."""
    plain = text_model.prepare_chat(ChatRequest((said("user", "Hi"), said("assistant", "%")), tools=(TOOL,)), 1).request
    span = plain.spans[1]
    turn = unpack_ids(plain.ids).tolist()[span.start : span.end]
    return turn.index(ord("%"))


def _up_to_end(ids: list[int], end_ids: tuple[int, ...]) -> list[int]:
    return ids[: next((i for i, t in enumerate(ids) if t in end_ids), len(ids)) + 1]


def test_older_nemotron() -> None:
    tokenizer = byte_tokenizer(("<s>", "</s>", "<extra_id_0>", "<extra_id_1>"))
    text_model = TextModel(tokenizer, {}, Config.of({"model.chat_template": "nemotron"}))
    assert text_model.apply_template(ChatRequest(TALK[:2])) == (
        "<extra_id_0>System\nBe nice.\n<extra_id_1>User\nHi\n<extra_id_1>Assistant\n"
    )


def test_deepseek_r1_thinks_unless_told_not_to() -> None:
    text_model = model("deepseek_r1")
    assert text_model.prepare_chat(ChatRequest(TALK), 1).request.plan.start == 1
    off = ChatRequest(TALK, reasoning=ReasoningIntent(enabled=False))
    assert text_model.prepare_chat(off, 1).prompt_text.endswith("<think>\n\n</think>\n\n")
    past = (*TALK[:2], said("assistant", "hm</think>Yes"), said("user", "x"))
    assert "hm" not in text_model.apply_template(ChatRequest(past)).replace("<think>", "")


def test_a_file(tmp_path: Any) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages | length }}!")
    text_model = TextModel(byte_tokenizer(), {}, Config.of({"model.chat_template": str(path)}))
    assert text_model.apply_template(ChatRequest(TALK[:1])).endswith("!")


def test_a_path_may_have_blanks(tmp_path: Any) -> None:
    path = tmp_path / "my template.jinja"
    path.write_text("{{ messages | length }}!")
    assert TextModel(byte_tokenizer(), {}, Config.of({"model.chat_template": str(path)})).chat_template.endswith("!")
    with pytest.raises(ConfigError, match="there is no chat template"):
        TextModel(byte_tokenizer(), {}, Config.of({"model.chat_template": str(path) + "2"}))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"klingon.*auto, chatml, deepseek_r1"):
        TextModel(byte_tokenizer(), {}, Config.of({"model.chat_template": "klingon"}))


def test_auto_without_a_template_is_chatml() -> None:
    assert "<|im_start|>" in TextModel(byte_tokenizer(), {}, Config()).chat_template
