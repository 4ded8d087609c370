"""What one rendering of a template may cost: steps of work, and characters or items of what it makes.

Sizes are known before things are made: `text_size` walks what would be written, and stops where it is too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import local
from typing import Any

from jinja2.utils import Namespace

MAX_STEPS = 2_000_000
"""Steps of loops per rendering; STEPS_PER_MESSAGE more for each message."""
STEPS_PER_MESSAGE = 1000
CALL_STEPS = 20
"""What a call of a macro, a method or a filter counts for."""
MAX_PRODUCT = 10_000_000
"""Characters of one text, items of one list."""
MAX_MADE = 25 * MAX_PRODUCT
"""The same of everything that one rendering makes, together."""
_LITTLE = 32
"""Characters that anything else is written with, about."""


class LimitExceeded(Exception):
    """The template does too much."""


class RenderingBudget:
    """Owner of what one rendering has left."""

    def __init__(self, steps: int = MAX_STEPS, given: frozenset[int] | None = None) -> None:
        """`given`: identities of the lists that the template was given, which it can't change. None: no list can be."""
        self.steps = steps
        self.made = MAX_MADE
        self.given = given

    def step(self, n: int = 1) -> None:
        self.steps -= n
        if self.steps < 0:
            raise LimitExceeded("it takes more than 2 million steps")

    def make(self, n: int) -> None:
        """Before or just after something of `n` characters or items is made."""
        if n > MAX_PRODUCT:
            raise LimitExceeded(f"it makes a text or list of more than {MAX_PRODUCT} items")
        self.made -= n
        if self.made < 0:
            raise LimitExceeded(f"all that it makes has more than {MAX_MADE} characters")


class _Current(local):
    budget: RenderingBudget = RenderingBudget()


_current = _Current()


def budget() -> RenderingBudget:
    """Of the rendering on this thread."""
    return _current.budget


@contextmanager
def spending(given: RenderingBudget) -> Iterator[None]:
    before, _current.budget = _current.budget, given
    try:
        yield
    finally:
        _current.budget = before


def counted(items: Iterable[Any]) -> Iterator[Any]:
    """The items, a step each."""
    left = budget()
    for item in items:
        left.step()
        yield item


def lists_in(value: Any) -> frozenset[int]:
    """Identities of the lists anywhere in plain data, which has no circles."""
    found, todo = set(), [value]
    while todo:
        one = todo.pop()
        if isinstance(one, Mapping):
            todo += one.values()
        elif isinstance(one, list | tuple):
            found.add(id(one))
            todo += one
    return frozenset(found)


def text_size(value: Any) -> int:
    """Characters that `str(value)` or JSON of it has at most, about. Raises LimitExceeded beyond what may be made."""
    if isinstance(value, str):
        return len(value)
    left = budget()
    size, todo = 0, [value]
    while todo:
        left.step()
        one = todo.pop()
        if isinstance(one, str | bytes | bytearray):
            size += 4 * len(one) + 2
        elif isinstance(one, int):
            size += one.bit_length() // 3 + 1
        elif isinstance(one, Mapping):
            size += 4 * len(one) + 2
            todo += one.keys()
            todo += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            size += 2 * len(one) + 2
            todo += one
        elif isinstance(one, Namespace):
            todo.append(object.__getattribute__(one, "_Namespace__attrs"))
        else:
            size += _LITTLE
        if size > MAX_PRODUCT or len(todo) > MAX_PRODUCT:
            raise LimitExceeded(f"it makes a text or list of more than {MAX_PRODUCT} items")
    return size
