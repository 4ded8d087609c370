"""What a completion looks like around its values: literal tags, free text up to a tag, raw text, functions.

The normal form of envelopes, built by whoever knows a model's notation (text/) and checked by check.check_envelope.
All bytes are marked bytes (core.special), so a tag made of a special token is matched by its id alone.

Alternatives are told apart by their bytes: they may begin alike as long as they are literals, and have to differ before
one of them comes to a value, a free or a raw text. Where they don't, the literal wins.

Nodes that hold a schema are compared by identity: a plan's nodes are decoded once per space.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Lit(msgspec.Struct, frozen=True, tag="lit"):
    """Exactly these bytes."""

    data: bytes


class Value(msgspec.Struct, frozen=True, eq=False, tag="value"):
    """A JSON value that satisfies a schema."""

    schema: Any


class Raw(msgspec.Struct, frozen=True, eq=False, tag="raw"):
    """Text as it is, up to `closer`, which is part of it and never appears inside.

    `schema`: what a *string* with this text has to satisfy (pattern, length, enum ...). As soon as `guard` bytes of the
    closer stand there, the rest of it has to follow: nothing like `</parameter1>` can run on. 0: all but the last byte
    that isn't a blank.

    `follow`: the closer counts only where one of these stands behind it, which is then read as what comes next; so
    anything else behind it is text, and there is no guard. What comes next begins with literals. `opener` brings a
    guard of one byte back: all of the closer but its last byte is followed by that, unless the text has the opener in
    it, for a text that speaks of such tags may spell others like them. `never`: what the text can't hold besides.
    """

    closer: bytes
    schema: Any = True
    guard: int = 0
    follow: tuple[bytes, ...] = ()
    opener: bytes = b""
    never: tuple[bytes, ...] = ()


class Words(msgspec.Struct, frozen=True, eq=False, tag="words"):
    """Text of a regex (matched as a whole), one of several choices, or a GBNF grammar. The last part of an envelope."""

    kind: str
    text: str = ""
    choices: tuple[str, ...] = ()


class Branch(msgspec.Struct, frozen=True, eq=False):
    """What follows once `tag` stands in the free text.

    `at_start`: the tag counts only where nothing but whitespace precedes it in the text. `early`: only in the first
    tokens of the completion (Matcher.past_early).
    """

    tag: bytes
    then: Node
    at_start: bool = False
    early: bool = False


class Free(msgspec.Struct, frozen=True, eq=False, tag="free"):
    """Any text, until one of the tags is complete: the first to be, the longest of those that are at the same byte.

    `may_end`: the completion may end in the text.
    """

    branches: tuple[Branch, ...]
    may_end: bool = False


class Seq(msgspec.Struct, frozen=True, eq=False, tag="seq"):
    parts: tuple[Node, ...]


class Alt(msgspec.Struct, frozen=True, eq=False, tag="alt"):
    """One of the options; an empty Seq among them makes the rest optional."""

    options: tuple[Node, ...]


class Repeat(msgspec.Struct, frozen=True, eq=False, tag="repeat"):
    """`part` at least `low` and at most `high` times (None: any number), `between` in between."""

    part: Node
    low: int = 0
    high: int | None = None
    between: bytes = b""


class Ref(msgspec.Struct, frozen=True, tag="ref"):
    """Another part of the envelope, read here."""

    part: int


class Parts(msgspec.Struct, frozen=True, eq=False, tag="parts"):
    """An envelope whose parts refer to one another. Outermost only; a part may lead to itself only by its last node."""

    parts: tuple[Node, ...]
    start: int = 0
    after_closing: int = -1
    """The part to go on with where the engine has closed the thinking by force; -1: as where the model closed it."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """The completion ends here, whatever surrounds this node."""


Node = Lit | Value | Raw | Words | Free | Seq | Alt | Repeat | Ref | Parts | End
