r"""What a regex means to those who read it: ECMA-262, and Python's `re`, which lark compiles to."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from imp_server.grammar.languages.regex.classes import DOT, SHORTHANDS, any_case, property_class, with_equals
from imp_server.grammar.machines.codepoints import Ranges, negated, normal


class Dialect(NamedTuple):
    dot: Ranges
    shorthands: Callable[[], Mapping[str, Ranges]]
    any_case: Callable[[Ranges], Ranges]
    empty_class: bool = True
    """`[]` and `[^]` are whole classes; else a leading ] is one of the characters."""
    whole: bool = True
    """The regex is the whole matter: it may look at the ends of the text, and it is all the same what is lazy."""


@cache
def _python_shorthands() -> Mapping[str, Ranges]:
    spaces = (*range(9, 14), *range(0x1C, 0x20), 0x85, 0x2028, 0x2029)
    space = normal([*_of("Zs"), *((code, code) for code in spaces)])
    word = normal([*_of("L"), *_of("N"), (0x5F, 0x5F)])
    digit = _of("Nd")
    found = {"d": digit, "w": word, "s": space}
    return found | {name.upper(): negated(ranges) for name, ranges in found.items()}


def _of(category: str) -> Ranges:
    ranges = property_class(category)
    assert ranges is not None
    return ranges


@cache
def _folded() -> dict[int, tuple[int, ...]]:
    """Code point -> all that simple case folding makes equal to it, if there are others."""
    groups: dict[str, list[int]] = {}
    for code in range(0x1F000):
        groups.setdefault(_fold(chr(code)), []).append(code)
    return {code: tuple(group) for group in groups.values() if len(group) > 1 for code in group}


def _fold(char: str) -> str:
    if unicodedata.category(char) == "Cs":
        return char
    for made in (char.casefold(), char.lower()):
        if len(made) == 1:
            return made
    return char


def _any_folded(ranges: Ranges) -> Ranges:
    return with_equals(ranges, _folded())


ECMA = Dialect(DOT, lambda: SHORTHANDS, any_case)
LARK = Dialect(negated(((10, 10),)), _python_shorthands, _any_folded, empty_class=False, whole=False)
