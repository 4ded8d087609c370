"""Giving memory back piece by piece: what refers to each other is taken apart, so that counting references frees it.

A search for cycles would stop every thread of the process for as long as all of its memory takes to be walked. So who
owns interned things empties his tables, one thing at a time: each is parted from what it refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any


def emptied(*tables: dict[Any, Any]) -> Iterator[None]:
    """Take everything out of tables whose values nobody uses any more, and each value apart. A step for each."""
    for table in tables:
        while table:
            _, value = table.popitem()
            part(value)
            yield


def dropped(*tables: dict[Any, Any]) -> Iterator[None]:
    """Take everything out of tables whose values others may use, too."""
    for table in tables:
        while table:
            table.popitem()
            yield


def part(thing: Any) -> None:
    """Let one thing, which nobody will ask again, no longer refer to anything."""
    own = getattr(thing, "__dict__", None)
    if own is not None:
        own.clear()
    for kind in type(thing).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if not name.startswith("__"):
                with suppress(AttributeError):  # it was never set
                    object.__delattr__(thing, name)
