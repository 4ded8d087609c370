"""A reply's exact ids come back with the next turn, and only where its text stands there exactly."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.config import Config
from imp_server.core import ChatRequest, Message, TextPart, ToolCall, unpack_ids
from imp_server.text.model import TextModel
from imp_server.text.transcripts import Transcripts, Written, hashed

from tests.asked import made
from tests.live.toy_server import TOOLS_CHATML
from tests.toy import CHATML, THINKING_CHATML, bpe_model, byte_tokenizer


def message(role: str, text: str, **more: Any) -> Message:
    return Message(role, (TextPart(text),), **more)  # type: ignore[arg-type]


def chat(*messages: Message, **more: Any) -> ChatRequest:
    return made(ChatRequest, messages, **more)


USER = message("user", "Say hello.")
THANKS = message("user", "Thanks, and again.")


def ids_of(model: TextModel, request: ChatRequest) -> list[int]:
    return unpack_ids(model.prepare_chat(request, 1).request.ids).tolist()


def by_bytes(model: TextModel, text: str) -> list[int]:
    """Ids that the tokenizer would never choose: one per byte."""
    table = model.vocabulary.token_bytes
    return [table.index(bytes([b])) for b in text.encode()]


def answer(model: TextModel, request: ChatRequest, reply: list[int], stop: bytes | None = None) -> list[int]:
    """The request is answered with these ids; the ids of both."""
    prepared = model.prepare_chat(request, 1)
    assert prepared.remember is not None
    prepared.remember(reply, stop)
    return [*unpack_ids(prepared.request.ids), *reply]


def test_the_next_turn_begins_with_the_replys_own_ids() -> None:
    model = bpe_model()
    reply = by_bytes(model, "The quick brown fox")
    begun = answer(model, chat(USER), reply)
    turn = chat(USER, message("assistant", "The quick brown fox"), THANKS)
    ids = ids_of(model, turn)
    fresh = ids_of(bpe_model(), turn)
    assert ids[: len(begun)] == begun != fresh[: len(begun)]
    assert model.tokenizer.decode(ids, skip_special=False) == model.tokenizer.decode(fresh, skip_special=False)
    assert model.count(turn) == len(ids) != len(fresh)


def test_turns_build_on_each_other() -> None:
    model = bpe_model()
    answer(model, chat(USER), by_bytes(model, "hello world"))
    second = chat(USER, message("assistant", "hello world"), THANKS)
    begun = answer(model, second, [*by_bytes(model, "jumps over"), *model.vocabulary.end_ids[:1]])
    third = chat(*second.messages, message("assistant", "jumps over"), USER)
    assert ids_of(model, third)[: len(begun)] == begun


def test_any_other_text_is_tokenised_afresh() -> None:
    model = bpe_model()
    answer(model, chat(USER), by_bytes(model, "hello world"))
    for text in ("hello world!", "hello worl", "Hello world", "hello  world", ""):
        turn = chat(USER, message("assistant", text), THANKS)
        assert ids_of(model, turn) == ids_of(bpe_model(), turn), text
    for before in (message("user", "Say hello"), message("system", "Say hello.")):
        turn = chat(before, message("assistant", "hello world"), THANKS)
        assert ids_of(model, turn) == ids_of(bpe_model(), turn)


def test_text_that_spells_a_control_token_is_another_text() -> None:
    """A reply with a silent control token in it and a message that only names that token."""
    model = bpe_model()
    start = model.vocabulary.special_id("<|im_start|>")
    assert start is not None
    answer(model, chat(USER), [*by_bytes(model, "a"), start, *by_bytes(model, "b")])
    turn = chat(USER, message("assistant", "a<|im_start|>b"), THANKS)
    assert ids_of(model, turn) == ids_of(bpe_model(), turn)


def test_a_stop_string_is_left_out() -> None:
    model = bpe_model()
    begun = answer(model, chat(USER), by_bytes(model, "hello STOP"), b"STOP")
    ids = ids_of(model, chat(USER, message("assistant", "hello "), THANKS))
    assert ids[: len(begun) - 4] == begun[:-4]
    whole = model.tokenizer.encode("hello world").tolist()
    prepared = model.prepare_chat(chat(THANKS), 1)
    assert prepared.remember is not None
    prepared.remember(whole, b"orld")
    turn = chat(THANKS, message("assistant", "hello w"), USER)
    assert ids_of(model, turn) == ids_of(bpe_model(), turn), "the stop string began within a token"


def test_a_reply_that_is_continued_keeps_its_ids() -> None:
    model = bpe_model()
    begun = answer(model, chat(USER), by_bytes(model, "hello wor"))
    going_on = chat(USER, message("assistant", "hello wor"), continue_final_message=True)
    assert ids_of(model, going_on) == begun


def test_reasoning_and_calls_count_as_the_template_writes_them() -> None:
    written = '<think>so it is</think>well<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    call = ToolCall("c1", "f", '{"a": 1}')
    as_said = message("assistant", "well", reasoning="so it is", tool_calls=(call,))
    otherwise = (
        message("assistant", "well", tool_calls=(call,)),
        message("assistant", "well", reasoning="so it was", tool_calls=(call,)),
        message("assistant", "well", reasoning="so it is", tool_calls=(ToolCall("c1", "f", '{"a": 2}'),)),
        message("assistant", "well", reasoning="so it is"),
    )
    model = bpe_model(TOOLS_CHATML)
    begun = answer(model, chat(USER), by_bytes(model, written))
    assert ids_of(model, chat(USER, as_said, THANKS))[: len(begun)] == begun
    for each in otherwise:
        turn = chat(USER, each, THANKS)
        assert ids_of(model, turn) == ids_of(bpe_model(TOOLS_CHATML), turn)


def test_spans_and_pins_are_those_of_the_ids() -> None:
    model = bpe_model()
    turn = chat(message("system", "be kind"), USER, message("assistant", "hello world"), THANKS)
    answer(model, chat(*turn.messages[:2]), by_bytes(model, "hello world"))
    prompt = model.prompts.chat(turn)
    for part, span in zip(turn.messages, prompt.spans, strict=True):
        text = model.tokenizer.decode(prompt.ids[span.start : span.end], skip_special=False)
        [shown] = part.parts
        assert isinstance(shown, TextPart) and text == f"<|im_start|>{part.role}\n{shown.text}<|im_end|>\n"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_was_said_the_ids_write_the_rendered_text(data: st.DataObject) -> None:
    """Random replies, sent back as they were or nearly so: the ids always write the very text that was rendered."""
    template = data.draw(st.sampled_from([CHATML, THINKING_CHATML]))
    model, fresh = bpe_model(template), bpe_model(template)
    specials = model.vocabulary.special_texts
    plain = [i for i, b in enumerate(model.vocabulary.token_bytes) if i not in specials and b.isascii()]
    messages: list[Message] = [USER]
    for _ in range(data.draw(st.integers(1, 4))):
        request = chat(*messages)
        reply = data.draw(st.lists(st.sampled_from(plain), min_size=1, max_size=12))
        begun = answer(model, request, reply)
        text = b"".join(model.vocabulary.token_bytes[i] for i in reply).decode()
        is_exact = data.draw(st.booleans())
        messages += [message("assistant", text if is_exact else text[:-1]), THANKS]
        turn = chat(*messages)
        ids, expected = ids_of(model, turn), ids_of(fresh, turn)
        assert model.tokenizer.decode(ids, skip_special=False) == model.tokenizer.decode(expected, skip_special=False)
        assert [i for i in ids if i in specials] == [i for i in expected if i in specials]
        if is_exact and template is CHATML:
            assert ids[: len(begun)] == begun


def test_it_is_off_with_its_knob_and_without_the_prefix_cache() -> None:
    for key in ("prefix_cache.transcripts", "prefix_cache.enabled"):
        model = bpe_model(config=Config.of({key: False}))
        assert model.prepare_chat(chat(USER), 1).remember is None and model.transcripts is None


def written(text: bytes) -> Written:
    ids = np.frombuffer(text, dtype=np.uint8).astype(np.int32)
    return Written(ids, len(text), (0, len(text)), (0, len(text)), hashed(text))


def test_entries_and_bytes_are_bounded_and_the_oldest_go() -> None:
    table = byte_tokenizer().vocabulary.token_bytes
    few = Transcripts(table, (256,), max_entries=2, max_bytes=1 << 20)
    for number in range(5):
        few.note(written(b"prompt %d" % number), list(b" reply"))
    assert len(few) == 2
    assert few.find(b"prompt 2 reply", [(14, 14)]) is None
    assert few.find(b"prompt 3 reply", [(14, 14)]) is not None
    few.note(written(b"prompt 5"), list(b" reply"))
    assert few.find(b"prompt 3 reply", [(14, 14)]) is not None, "it was used after the other"
    small = Transcripts(table, (256,), max_entries=100, max_bytes=4000)
    for number in range(20):
        small.note(written(b"prompt %d" % number), list(b" reply"))
        assert 0 < small.n_bytes <= 4000
    small.note(written(b"x" * 4000), list(b" reply"))
    assert small.n_bytes <= 4000 and small.find(b"x" * 4000 + b" reply", [(4006, 4006)]) is None


def test_noting_a_long_reply_takes_no_time() -> None:
    """The event loop does it; the work is left to the next look-up."""
    table = byte_tokenizer().vocabulary.token_bytes
    kept = Transcripts(table, (256,), max_entries=8, max_bytes=1 << 24)
    reply = list(range(32, 127)) * 2000
    prompt = written(b"x" * 100_000)
    began = time.perf_counter()
    kept.note(prompt, reply)
    noted_s = time.perf_counter() - began
    began = time.perf_counter()
    assert len(kept) == 1
    assert noted_s < 0.1 * (time.perf_counter() - began)
