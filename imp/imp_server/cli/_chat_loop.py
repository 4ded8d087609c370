"""The conversation loop of `imp chat`: commands, questions, answers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from imp_server.cli._chat_answer import ChatAnswer, Write
from imp_server.cli._conversation import SETTINGS, Conversation
from imp_server.cli._markdown_stream import MarkdownStream
from imp_server.cli._message import fitted
from imp_server.cli._word_wrap import WordWrap
from imp_server.core import ChatRequest, ContextLengthExceeded, ImpError

HELP = """\
/system TEXT    set the system message (without TEXT: show it)
/set NAME VALUE temperature, top_p, top_k, seed, max_tokens, thinking, ...; VALUE `default` takes it back
/set            show what is set; /set NAME shows one
/markdown       switch the rendering of Markdown on or off
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

    def answer(self, request: ChatRequest, write: Write) -> ChatAnswer: ...


@dataclass(slots=True)
class ChatLoop:
    """Owner of one chat in the terminal."""

    model: ChatModel
    conversation: Conversation
    colour: bool = field(default_factory=lambda: sys.stdout.isatty())
    markdown: bool = True
    """Rendered on a terminal; elsewhere text stays as it is written."""
    has_told_dropped: bool = False

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
            except KeyboardInterrupt:  # before there was an answer to stop
                self.note("stopped")
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
            case "/set":
                self.set(*rest.split(None, 1))
            case "/markdown":
                self.markdown = not self.markdown
                self.note(f"Markdown is {'rendered' if self.markdown else 'shown as it is written'}")
            case "/clear":
                talk.messages.clear()
                self.has_told_dropped = False
                self.note("a new conversation")
            case "/retry":
                self.retry()
            case "/save" if rest:
                talk.save(Path(rest).expanduser())
                self.note(f"saved {len(talk.messages)} messages to {rest}")
            case "/load" if rest:
                talk.load(Path(rest).expanduser())
                self.note(f"loaded {len(talk.messages)} messages")
            case "/help" | "/save" | "/load":
                print(HELP)
            case _:
                self.note(f"there is no command {name}; /help lists them")
        return True

    def set(self, name: str = "", value: str = "") -> None:
        """Set one value or show it; without a name show all that aren't at their default."""
        talk = self.conversation
        if value:
            talk.set(name, value.strip())
        if name:
            self.note(talk.shown(name))
            return
        shown = [talk.shown(each) for each in SETTINGS]
        changed = [line for line in shown if not line.endswith(" = default")]
        self.note(
            "\n".join([*changed, f"at their default: {', '.join(x.split()[0] for x in shown if x not in changed)}"])
        )

    def retry(self) -> None:
        messages = self.conversation.messages
        while messages and messages[-1].role != "user":
            messages.pop()
        if messages:
            self._answer()

    def ask(self, question: str) -> ChatAnswer:
        """Add the question and print the answer; a question that is refused is taken back."""
        self.conversation.add("user", question)
        try:
            return self._answer()
        except (ImpError, KeyboardInterrupt):
            self.conversation.messages.pop()
            raise

    def _answer(self) -> ChatAnswer:
        """Where the context is full the oldest turns are left out, which is told once."""
        printer = _Printer(self.colour, self.markdown)
        while True:
            try:
                result = self.model.answer(self.conversation.request(), printer.write)
                break
            except ContextLengthExceeded:
                if printer.has_written or not self.conversation.drop_oldest():
                    raise
                if not self.has_told_dropped:
                    self.note("the context is full: the oldest turns are left out from now on")
                self.has_told_dropped = True
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

    def __init__(self, colour: bool, markdown: bool) -> None:
        self.colour = colour
        self.reasoning = False
        self.after_reasoning = False
        self.has_written = False
        self.put: Callable[[str], object] = sys.stdout.write
        self.rendered: MarkdownStream | None = None
        if colour:
            size = shutil.get_terminal_size()
            self.put = WordWrap(sys.stdout.write, size.columns).write
            if markdown:
                self.rendered = MarkdownStream(sys.stdout, size.columns, size.lines)

    def write(self, text: str, reasoning: bool) -> None:
        self.has_written = True
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
        if self.rendered and not reasoning:
            self.rendered.write(text)
        else:
            self.put(text)
        sys.stdout.flush()

    def end(self) -> None:
        if self.rendered and self.rendered.end():
            return
        print(PLAIN if self.reasoning and self.colour else "")
