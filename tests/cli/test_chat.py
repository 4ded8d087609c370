"""The chat loop on a scripted engine: streaming, commands, Ctrl-C, saving, several lines."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from imp_server.api.text_side import TextSide
from imp_server.cli._chat_answer import LocalModel
from imp_server.cli._chat_loop import ChatLoop
from imp_server.cli._chat_prompt import read_message
from imp_server.cli._conversation import Conversation
from imp_server.core import ChatRequest, GenerateRequest, TextPart, UserFault
from imp_server.engine.client.scripted import Action, ScriptedEngine, Wait, byte_vocabulary, text_ids
from imp_server.text.session import Prepared

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
    assert "14 tokens" in out.err and "first token after" in out.err
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


def test_ctrl_c_before_the_first_token_stops_the_answer(
    chat: ChatLoop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = ByteText.prepare_chat

    def interrupted(self: ByteText, request: ChatRequest) -> Prepared:
        os.kill(os.getpid(), signal.SIGINT)
        return prepare(self, request)

    monkeypatch.setattr(ByteText, "prepare_chat", interrupted)
    scripted(chat).always([*text_ids("never"), *text_ids("ending") * 100])
    said = chat.ask("tell me")
    assert said.stopped and len(said.text) < 100
    assert "stopped" in capsys.readouterr().err


def test_ctrl_c_while_a_question_is_measured_takes_it_back(
    chat: ChatLoop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(chat, "first")

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(ByteText, "count", interrupted)
    say(chat, "second", "/system kept on")
    assert "stopped" in capsys.readouterr().err and chat.conversation.system == "kept on"
    assert [m.role for m in chat.conversation.messages] == ["user", "assistant"]


def test_reasoning_is_kept_apart(chat: ChatLoop, capsys: pytest.CaptureFixture[str]) -> None:
    engine = scripted(chat)
    engine.play(text_ids("<let me see>\n\n42"))
    result = chat.ask("what?")
    assert (result.reasoning, result.text) == ("let me see", "42")
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
    say(chat, "/set temperature 0.5", "/set max_tokens 7", "/set thinking false", "/set seed -3")
    request = talk.request()
    assert (
        request.sampling.asked["temperature"] == 0.5
        and request.output.max_tokens == 7
        and request.reasoning.enabled is False
    )
    for name, value, words in (
        ("temprature", "1", "did you mean temperature"),
        ("colour", "1", "there are max_tokens, thinking"),
        ("logit_bias", "{}", "no setting"),
        ("temperature", "warm", "a number from 0 to 100"),
        ("temperature", "-1", "a number from 0"),
        ("top_p", "1.5", "from 0 to 1"),
        ("top_p", "NaN", "from 0 to 1"),
        ("max_tokens", "0", "from 1"),
        ("max_tokens", "1.5", "isn't a value"),
        ("top_k", "true", "isn't a value"),
        ("mirostat", "3", "0 = off, 1, 2"),
        ("thinking", "3", "isn't a value"),
    ):
        with pytest.raises(UserFault, match=words):
            talk.set(name, value)
    assert talk.request() == request
    for name in ("temperature", "max_tokens", "thinking", "seed"):
        talk.set(name, "default")
    assert talk.request() == Conversation().request()


def test_settings_are_shown(chat: ChatLoop, capsys: pytest.CaptureFixture[str]) -> None:
    say(chat, "/set top_p 0.25", "/set top_p", "/set max_tokens", "/set", "/set nonsense")
    err = capsys.readouterr().err.splitlines()
    assert err[:3] == ["top_p = 0.25", "top_p = 0.25", "max_tokens = default"]
    assert err[3] == "top_p = 0.25" and err[4].startswith("at their default: max_tokens, thinking, temperature")
    assert "no setting nonsense" in err[5]


def test_a_full_context_drops_the_oldest_turns_and_says_so_once(
    chat: ChatLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = scripted(chat)
    context = engine.info.context_length
    engine.always(text_ids("x" * (context // 20)))
    questions = [f"question {n} " + "y" * (context // 20) for n in range(30)]
    say(chat, *questions, "/clear")
    out, err = capsys.readouterr()
    assert out.count("xxx\n") == 30 and "imp:" not in err, "every question is answered"
    assert err.count("the oldest turns are left out from now on") == 1
    assert isinstance(chat.model, LocalModel) and isinstance(chat.model.text, ByteText)
    last = chat.model.text.seen[-1]
    assert last.messages[0].role == "user" and "question 29" in str(last.messages[-1])
    assert chat.model.text.count(last) <= context * 3 // 4, "a quarter is kept for the answer"


def test_one_question_that_is_too_long_is_refused(chat: ChatLoop, capsys: pytest.CaptureFixture[str]) -> None:
    say(chat, "y" * (2 * scripted(chat).info.context_length), "hi")
    assert "context" in capsys.readouterr().err
    assert [m.role for m in chat.conversation.messages] == ["user", "assistant"]


def test_an_answer_never_takes_the_whole_context(chat: ChatLoop) -> None:
    limits: list[int] = []

    def seen(request: GenerateRequest, choice: int) -> Iterator[Action]:
        limits.append(request.plan.max_tokens)
        yield text_ids("x")

    engine = scripted(chat)
    engine.answer_with(seen)
    chat.ask("hi")
    chat.conversation.set("max_tokens", "77")
    chat.ask("hi")
    assert limits == [engine.info.context_length // 2, 77]


def test_markdown_is_rendered_on_a_terminal_only(capsys: pytest.CaptureFixture[str], chat: ChatLoop) -> None:
    scripted(chat).always(text_ids("# Head\n\nsome **bold** text\n\n```py\nx = 1\n```\nend"))
    chat.ask("hi")
    assert "**bold**" in capsys.readouterr().out, "not a terminal"
    chat.colour = True
    chat.ask("hi")
    shown = screen(capsys.readouterr().out)
    assert "some bold text" in shown and "x = 1" in shown and "end" in shown
    assert "**" not in shown and "```" not in shown and "# Head" not in shown
    say(chat, "/markdown")
    chat.ask("hi")
    assert "**bold**" in screen(capsys.readouterr().out)


def screen(written: str, columns: int = 80) -> str:
    """What a terminal shows of it: the few commands that we use."""
    rows: list[str] = [""]
    at = 0
    for piece in re.split(r"(\x1b\[[0-9;]*[A-Za-z]|\n|\r)", written):
        if piece == "\n":
            at += 1
            rows += [""] * (at + 1 - len(rows))
        elif piece == "\r" or not piece:
            continue
        elif piece.endswith("A") and piece[0] == "\x1b":
            at -= int(piece[2:-1])
        elif piece == "\x1b[J":
            del rows[at:]
            rows.append("")
        elif piece.endswith("D") and piece[0] == "\x1b":
            rows[at] = rows[at][: -int(piece[2:-1])]
        elif piece[0] != "\x1b":
            rows[at] += piece
    return "\n".join(rows)


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


def _read_to(terminal: int, *prompts: bytes) -> bytes:
    """What the terminal shows, up to a prompt or its end."""
    shown = b""
    while not shown.endswith(prompts):
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            break
    return shown


def typed_into_a_terminal(home: Path, *keys: bytes) -> list[str]:
    """Messages that `read_message` returned, one JSON text per line."""
    code = (
        "import json; from pathlib import Path\n"
        "from imp_server.cli._chat_prompt import read_message, set_up_history\n"
        f"save = set_up_history(Path({str(home / 'history')!r}))\n"
        "while (message := read_message()) is not None: print('GOT' + json.dumps(message), flush=True)\n"
        "save()\n"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", code])
    shown = _read_to(terminal, b">>> ")
    for key in keys:
        os.write(terminal, key)
        if key.endswith(b"\r"):
            shown += _read_to(terminal, b">>> ", b"... ")
        else:
            time.sleep(0.05)
    shown += _read_to(terminal, b"never")
    os.waitpid(process, 0)
    return [json.loads(line) for line in re.findall(r"GOT(\".*\")", shown.decode())]


UP, PASTE = b"\x1b[A", b"\x1b[200~%s\x1b[201~"


def test_several_lines_come_back_whole(tmp_path: Path) -> None:
    """Pasted, fenced, or continued: one entry; also in the next chat."""
    found = typed_into_a_terminal(tmp_path, PASTE % b"one\ntwo", b"\r", UP, b"\r", b"\x04")
    assert found == ["one\ntwo"] * 2
    found = typed_into_a_terminal(
        tmp_path, UP, b"\r", b'"""a\r', b'b"""\r', UP, b"\r", b"c\\\r", b"d\r", UP, b"!\r", UP, UP, b"\r", b"\x04"
    )
    assert found == ["one\ntwo", "a\nb", "a\nb", "c\nd", "c\nd!", "c\nd"]
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600
