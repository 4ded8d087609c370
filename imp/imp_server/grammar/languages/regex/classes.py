"""The named character classes of regexes: ECMA-262's shorthands, Unicode general categories, case variants."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Mapping
from functools import cache, lru_cache

from imp_server.grammar.machines.codepoints import ANY, LAST, Ranges, negated, normal

DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACES = (*range(9, 14), 0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF)
SPACE: Ranges = normal((code, code) for code in _SPACES)
"""WhiteSpace and LineTerminator of ECMA-262."""
LINE_END: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
DOT = negated(LINE_END)

SHORTHANDS: dict[str, Ranges] = {
    "d": DIGIT,
    "D": negated(DIGIT),
    "w": WORD,
    "W": negated(WORD),
    "s": SPACE,
    "S": negated(SPACE),
}

_LONG_NAMES = {
    "letter": "L", "casedletter": "LC", "uppercaseletter": "Lu", "lowercaseletter": "Ll", "titlecaseletter": "Lt",
    "modifierletter": "Lm", "otherletter": "Lo", "mark": "M", "combiningmark": "M", "nonspacingmark": "Mn",
    "spacingmark": "Mc", "enclosingmark": "Me", "number": "N", "decimalnumber": "Nd", "digit": "Nd",
    "letternumber": "Nl", "othernumber": "No", "punctuation": "P", "punct": "P", "connectorpunctuation": "Pc",
    "dashpunctuation": "Pd", "openpunctuation": "Ps", "closepunctuation": "Pe", "initialpunctuation": "Pi",
    "finalpunctuation": "Pf", "otherpunctuation": "Po", "symbol": "S", "mathsymbol": "Sm", "currencysymbol": "Sc",
    "modifiersymbol": "Sk", "othersymbol": "So", "separator": "Z", "spaceseparator": "Zs", "lineseparator": "Zl",
    "paragraphseparator": "Zp", "other": "C", "control": "Cc", "cntrl": "Cc", "format": "Cf", "privateuse": "Co",
    "unassigned": "Cn", "surrogate": "Cs",
}  # fmt: skip


@cache
def _categories() -> dict[str, Ranges]:
    """Two-letter general category -> code points, of the Unicode version Python has."""
    found: dict[str, list[tuple[int, int]]] = {}
    start, current = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 2):
        name = unicodedata.category(chr(code)) if code <= sys.maxunicode else ""
        if name != current:
            found.setdefault(current, []).append((start, code - 1))
            start, current = code, name
    return {name: normal(ranges) for name, ranges in found.items()}


@lru_cache(maxsize=256)
def property_class(name: str) -> Ranges | None:
    r"""The code points of `\p{name}`; None if the property isn't known here (scripts, for instance)."""
    key, _, value = name.partition("=")
    if value:
        if key not in ("gc", "General_Category"):
            return None
        name = value
    if name == "Any":
        return ANY
    if name == "ASCII":
        return ((0, 0x7F),)
    if name == "Assigned":
        return negated(_categories()["Cn"])
    if len(name) > 2:
        name = _LONG_NAMES.get(name.replace("_", "").lower(), "")
    wanted = ("Lu", "Ll", "Lt") if name == "LC" else (name,)
    parts = [r for short, r in _categories().items() if name and short.startswith(wanted)]
    return normal(span for ranges in parts for span in ranges) if parts else None


@cache
def _case_groups() -> dict[int, tuple[int, ...]]:
    """Code point -> all with the same Canonicalize() of ECMA-262 (without the u flag), if there are others."""
    groups: dict[int, list[int]] = {}
    for code in range(0x1F000):
        upper = chr(code).upper()
        key = ord(upper) if len(upper) == 1 else code
        if code >= 128 and key < 128:
            key = code
        groups.setdefault(key, []).append(code)
    return {code: tuple(group) for group in groups.values() if len(group) > 1 for code in group}


def any_case(ranges: Ranges) -> Ranges:
    """The set with the other cases of its members."""
    return with_equals(ranges, _case_groups())


def with_equals(ranges: Ranges, groups: Mapping[int, tuple[int, ...]]) -> Ranges:
    """The set with all that `groups` (code point -> its equals) makes equal to its members."""
    extra = [
        (other, other)
        for low, high in ranges
        for code in (range(low, high + 1) if high - low < 4096 else [c for c in groups if low <= c <= high])
        for other in groups.get(code, ())
    ]
    return normal([*ranges, *extra])


__all__ = ["ANY", "DIGIT", "DOT", "LAST", "SHORTHANDS", "SPACE", "WORD", "any_case", "property_class"]
