"""The chat loop on a scripted engine: streaming, commands, Ctrl-C, saving, several lines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from imp_server.api.text_side import TextSide
from imp_server.cli._chat_answer import LocalModel
from imp_server.cli._chat_loop import ChatLoop
from imp_server.cli._chat_prompt import read_message
from imp_server.cli._conversation import Conversation
from imp_server.core import GenerateRequest, TextPart, UserFault
from imp_server.engine.scripted import Action, ScriptedEngine, Wait, byte_vocabulary, text_ids

from tests.cli.chat_double import ByteText


@pytest.fixture
def chat() -> Iterator[ChatLoop]:
    engine = ScriptedEngine(byte_vocabulary("<|end|>"))
    engine.always(text_ids("Hello, wörld"))
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        model = LocalModel(engine, cast(TextSide, ByteText()), runner)
        yield ChatLoop(model, Conversation(), colour=False)
        runner.run(engine.stop())


def scripted(chat: ChatLoop) -> ScriptedEngine:
    assert isinstance(chat.model, LocalModel) and isinstance(chat.model.client, ScriptedEngine)
    return chat.model.client


def say(chat: ChatLoop, *lines: str) -> None:
    rest = iter(lines)
    chat.run(lambda: next(rest, None))


def test_an_answer_streams_and_becomes_history(chat: ChatLoop, capsys: pytest.CaptureFixture[str]) -> None:
    say(chat, "/system be kind", "hi", "", "again")
    out = capsys.readouterr()
    assert out.out == "Hello, wörld\nHello, wörld\n\n"
    assert "14 tokens" in out.err and "tokens/s" in out.err and "first token after" in out.err
    assert isinstance(chat.model, LocalModel) and isinstance(chat.model.text, ByteText)
    first, second = chat.model.text.seen
    assert [m.role for m in first.messages] == ["system", "user"]
    assert [m.role for m in second.messages] == ["system", "user", "assistant", "user"]
    assert second.messages[2].parts == (TextPart("Hello, wörld"),)


def test_ctrl_c_stops_the_answer_and_nothing_else(chat: ChatLoop, capsys: pytest.CaptureFixture[str]) -> None:
    engine = scripted(chat)

    def slow(request: GenerateRequest, choice: int) -> Iterator[Action]:
        yield text_ids("part")
        yield Wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        yield Wait(30)

    engine.answer_with(slow)
    chat.ask("tell me")
    assert "stopped" in capsys.readouterr().err
    assert chat.conversation.messages[-1].parts == (TextPart("part"),)
    assert engine.n_running == 0
    engine.always(text_ids("more"))
    assert chat.ask("go on").text == "more"
    with pytest.raises(KeyboardInterrupt):  # outside of an answer Ctrl-C is the terminal's again
        os.kill(os.getpid(), signal.SIGINT)


def test_reasoning_is_kept_apart(chat: ChatLoop, capsys: pytest.CaptureFixture[str]) -> None:
    engine = scripted(chat)
    engine.play(text_ids("<let me see>\n\n42"))
    result = chat.ask("what?")
    assert (result.reasoning, result.text) == ("let me see", "\n\n42")
    assert capsys.readouterr().out == "let me see\n\n42\n"
    assert chat.conversation.messages[-1].reasoning == "let me see"


def test_a_refused_question_is_taken_back(chat: ChatLoop, capsys: pytest.CaptureFixture[str]) -> None:
    say(chat, "please refuse", "hi")
    assert "imp: the template refuses this" in capsys.readouterr().err
    assert [m.role for m in chat.conversation.messages] == ["user", "assistant"]


def test_retry_clear_and_leave(chat: ChatLoop, capsys: pytest.CaptureFixture[str]) -> None:
    say(chat, "/retry", "one", "/retry", "/help", "/nonsense", "/bye", "never asked")
    out, err = capsys.readouterr()
    assert out.count("Hello") == 2 and out.count("/save FILE") == 1
    assert "no command /nonsense" in err
    assert len(chat.conversation.messages) == 2
    say(chat, "/clear")
    assert chat.conversation.messages == []


def test_save_and_load(chat: ChatLoop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "talk.json"
    say(chat, "/system short", "hi", f"/save {file}", "/clear", "/system other", f"/load {file}")
    saved = json.loads(file.read_text())
    assert saved["messages"] == [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello, wörld"},
    ]
    assert chat.conversation.system == "short" and len(chat.conversation.messages) == 2
    file.write_text('{"messages": [{"role": "wizard", "content": "x"}]}')
    say(chat, f"/load {file}", f"/load {tmp_path}/gone", f"/save {tmp_path}/no/such/folder")
    err = capsys.readouterr().err
    assert "no saved conversation" in err and "can't read" in err and "can't write" in err
    assert len(chat.conversation.messages) == 2, "a bad file changes nothing"


def test_settings(chat: ChatLoop) -> None:
    talk = chat.conversation
    say(chat, "/set temperature 0.5", "/set max_tokens 7", "/set thinking false")
    request = talk.request()
    assert request.sampling.temperature == 0.5 and request.max_tokens == 7 and request.reasoning.enabled is False
    for name, value in (("temprature", "1"), ("temperature", "warm"), ("max_tokens", "1.5"), ("logit_bias", "{}")):
        with pytest.raises(UserFault):
            talk.set(name, value)
    assert talk.request() == request


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hi"], "hi"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        (['"""all in one"""'], "all in one"),
        (["one\\", "two"], "one\ntwo"),
        ([], None),
    ],
)
def test_several_lines(typed: list[str], message: str | None) -> None:
    lines = iter(typed)

    def read(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert read_message(read) == message


def test_ctrl_c_at_the_prompt_begins_again(capsys: pytest.CaptureFixture[str]) -> None:
    events: Iterator[str | BaseException] = iter(['"""half', KeyboardInterrupt(), "whole"])

    def read(_: str) -> str:
        event = next(events)
        if isinstance(event, BaseException):
            raise event
        return event

    assert read_message(read) == "whole"
    assert "/bye" in capsys.readouterr().err
