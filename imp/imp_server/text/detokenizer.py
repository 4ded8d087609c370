"""Bytes of tokens -> text, whole characters only, one stretch of one kind at a time; accounts for every byte.

Bytes that form no character are dropped, not shown as U+FFFD, and so is an unfinished character at the
end: a replacement character in the output is one that the model wrote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from imp_server.core import LogprobEntry, TokenLogprob

Kind = Literal["text", "reasoning"]
Account = Callable[[bytes, bool], None]
"""(bytes, kept): these bytes, next in order, became text or were dropped."""

_BLANKS = b" \t\r\n"


class Characters:
    """Owner of the bytes of one unfinished character."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes, account: Account) -> str:
        data = self._rest + data
        self._rest = b""
        parts: list[str] = []
        while data:
            try:
                parts.append(data.decode())
                account(data, True)
                break
            except UnicodeDecodeError as error:
                good, bad = data[: error.start], data[error.start : error.end]
                parts.append(good.decode())
                account(good, True)
                # Only a character cut by the end of the data may still be finished by the next token.
                if error.end == len(data) and error.reason == "unexpected end of data":
                    self._rest = bad
                    break
                account(bad, False)
                data = data[error.end :]
        return "".join(parts)

    def drop(self, account: Account) -> None:
        if self._rest:
            account(self._rest, False)
            self._rest = b""


class Channel:
    """One stretch of text or reasoning. Owner of the blanks at its edges that may turn out not to belong to it."""

    def __init__(self, *, strip_start: bool = False, hold_start: bool = False, hold_end: bool = False) -> None:
        """`strip_start`: blanks before the first word are dropped. `hold_start`: they wait for it.

        `hold_end`: blanks wait for what follows them (`cut` drops them, `end` releases them).
        """
        self._characters = Characters()
        self._strip_start = strip_start
        self._hold_start = hold_start and not strip_start
        self._hold_end = hold_end
        self._held: list[tuple[bytes, bool]] = []
        """Waiting blanks (True) and the silent tokens between them (False), in order."""
        self._begun = False

    def feed(self, data: bytes, account: Account) -> str:
        """The text that is certain now."""
        if not self._begun and (self._strip_start or self._hold_start):
            bare = data.lstrip(_BLANKS)
            if self._strip_start:
                self._drop(data[: len(data) - len(bare)], account)
                data = bare
            elif not bare:
                self._hold(data)
                return ""
        if not data:
            return ""
        self._begun = True
        bare = data.rstrip(_BLANKS) if self._hold_end else data
        text = ""
        if bare:
            text = self._release(account) + self._characters.feed(bare, account)
        self._hold(data[len(bare) :])
        return text

    def silent(self, data: bytes, account: Account) -> None:
        """A token that shows nothing; it ends an unfinished character, but no run of blanks."""
        if self._held:
            self._held.append((data, False))
        else:
            self._characters.drop(account)
            account(data, False)

    def end(self, account: Account) -> str:
        """The completion ends here: held blanks belong to the text after all."""
        text = self._release(account)
        self._characters.drop(account)
        return text

    def cut(self, account: Account) -> None:
        """A marker follows: held blanks go with it."""
        self._characters.drop(account)
        for data, _ in self._held:
            account(data, False)
        self._held = []

    def _release(self, account: Account) -> str:
        held, self._held = self._held, []
        text = ""
        for data, visible in held:
            if visible:
                text += self._characters.feed(data, account)
            else:
                self._characters.drop(account)
                account(data, False)
        return text

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append((data, True))

    def _drop(self, data: bytes, account: Account) -> None:
        if data:
            account(data, False)


class _TextPart(NamedTuple):
    kind: Kind
    data: bytearray


@dataclass(slots=True)
class _Open:
    logprob: TokenLogprob
    n_left: int
    parts: list[_TextPart] = field(default_factory=list)


class Ledger:
    """Which token wrote which byte of the output; owner of the tokens whose bytes aren't all settled."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """`token_bytes(id)`: the bytes a token shows in `top` lists (a special token's plain text)."""
        self._open: deque[_Open] = deque()
        self._token_bytes = token_bytes
        self._done: list[tuple[Kind, LogprobEntry]] = []

    def add(self, logprob: TokenLogprob, n_bytes: int) -> None:
        self._open.append(_Open(logprob, n_bytes))

    def settle(self, data: bytes, kind: Kind | None) -> None:
        """The next bytes in order became text of `kind`, or none."""
        while data and self._open:
            token = self._open[0]
            part, data = data[: token.n_left], data[token.n_left :]
            token.n_left -= len(part)
            if kind is not None and part:
                if token.parts and token.parts[-1].kind == kind:
                    token.parts[-1].data.extend(part)
                else:
                    token.parts.append(_TextPart(kind, bytearray(part)))
            if token.n_left == 0:
                self._close(self._open.popleft())

    def close(self) -> None:
        """The output is over: what isn't settled (a stop string, an end token) became no text."""
        while self._open:
            self._close(self._open.popleft())

    def take(self) -> list[tuple[Kind, LogprobEntry]]:
        """Entries of the tokens that were settled since the last call. Tokens that wrote no text have none."""
        done, self._done = self._done, []
        return done

    def _close(self, token: _Open) -> None:
        top = tuple((i, self._token_bytes(i), value) for i, value in token.logprob.top)
        for kind, data in token.parts:
            entry = LogprobEntry(token.logprob.id, bytes(data), token.logprob.logprob, top)
            self._done.append((kind, entry))
