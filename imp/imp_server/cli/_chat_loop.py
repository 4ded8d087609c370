"""The conversation loop of `imp chat`: commands, questions, answers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from imp_server.cli._chat_answer import Answer, Write
from imp_server.cli._conversation import Conversation
from imp_server.cli._message import fitted
from imp_server.cli._word_wrap import WordWrap
from imp_server.core import ChatRequest, ImpError

HELP = """\
/system TEXT    set the system message (without TEXT: show it)
/set NAME VALUE temperature, top_p, top_k, seed, max_tokens, thinking, ...
/clear          begin a new conversation
/retry          answer the last question again
/save FILE      write the conversation as JSON
/load FILE      go on with a saved conversation
/bye            leave (also Ctrl-D)
Ctrl-C          stop the answer
\"\"\" begins and ends a message of several lines, and so does a \\ at a line's end."""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class ChatModel(Protocol):
    """What answers: a model in this process, or one behind a URL."""

    def answer(self, request: ChatRequest, write: Write) -> Answer: ...


@dataclass(slots=True)
class ChatLoop:
    """Owner of one chat in the terminal."""

    model: ChatModel
    conversation: Conversation
    colour: bool = field(default_factory=lambda: sys.stdout.isatty())

    def run(self, read_message: Callable[[], str | None]) -> None:
        """Until the user leaves."""
        while (message := read_message()) is not None:
            if not message.strip():
                continue
            try:
                if message.startswith("/"):
                    if not self.command(message):
                        return
                else:
                    self.ask(message)
            except ImpError as error:
                self.note(f"imp: {error.message}")
        print()

    def command(self, line: str) -> bool:
        """False = leave."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        talk = self.conversation
        match name:
            case "/bye" | "/exit" | "/quit":
                return False
            case "/system":
                if rest:
                    talk.system = rest
                self.note(f"system: {talk.system or '(none)'}")
            case "/set" if rest:
                key, _, value = rest.partition(" ")
                talk.set(key, value.strip())
                self.note(f"{key} = {value.strip()}")
            case "/clear":
                talk.messages.clear()
                self.note("a new conversation")
            case "/retry":
                self.retry()
            case "/save" if rest:
                talk.save(Path(rest).expanduser())
                self.note(f"saved {len(talk.messages)} messages to {rest}")
            case "/load" if rest:
                talk.load(Path(rest).expanduser())
                self.note(f"loaded {len(talk.messages)} messages")
            case "/help" | "/set" | "/save" | "/load":
                print(HELP)
            case _:
                self.note(f"there is no command {name}; /help lists them")
        return True

    def retry(self) -> None:
        messages = self.conversation.messages
        while messages and messages[-1].role != "user":
            messages.pop()
        if messages:
            self._answer()

    def ask(self, question: str) -> Answer:
        """Add the question and print the answer; a question that is refused is taken back."""
        self.conversation.add("user", question)
        try:
            return self._answer()
        except ImpError:
            self.conversation.messages.pop()
            raise

    def _answer(self) -> Answer:
        printer = _Printer(self.colour)
        result = self.model.answer(self.conversation.request(), printer.write)
        printer.end()
        self.conversation.add("assistant", result.text, result.reasoning or None)
        self.note(result.line())
        return result

    def note(self, text: str) -> None:
        """Our own words: dim on a terminal, on stderr otherwise."""
        if self.colour:
            print(f"{DIM}{fitted(text, sys.stdout)}{PLAIN}")
        else:
            print(text, file=sys.stderr)


class _Printer:
    """Writes an answer as it comes; reasoning is dim, and one empty line parts it from the answer."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour
        self.reasoning = False
        self.after_reasoning = False
        self.put: Callable[[str], object] = sys.stdout.write
        if colour:
            self.put = WordWrap(sys.stdout.write, shutil.get_terminal_size().columns).write

    def write(self, text: str, reasoning: bool) -> None:
        if reasoning and not self.reasoning and self.colour:
            sys.stdout.write(DIM)
        if self.reasoning and not reasoning:
            sys.stdout.write(PLAIN if self.colour else "")
            self.after_reasoning = True
        self.reasoning = reasoning
        if self.after_reasoning and not reasoning:
            text = text.lstrip("\n")
            if not text:
                return
            self.put("\n\n")
            self.after_reasoning = False
        self.put(text)
        sys.stdout.flush()

    def end(self) -> None:
        print(PLAIN if self.reasoning and self.colour else "")
