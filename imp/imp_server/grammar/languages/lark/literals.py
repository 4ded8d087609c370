"""Strings, ranges and regexes of a lark grammar as expressions over code points."""

from __future__ import annotations

import re

from imp_server.core import GrammarRefused
from imp_server.grammar.languages.regex.anchors import Splitter
from imp_server.grammar.languages.regex.dialect import LARK
from imp_server.grammar.languages.regex.parser import parse
from imp_server.grammar.machines.ambiguity import excessive
from imp_server.grammar.machines.codepoints import normal
from imp_server.grammar.machines.nodes import Node, Nodes

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "\\": "\\", '"': '"'}
_FLAGS = "imsux"


def unescaped(inside: str) -> str:
    r"""The text of a string literal. A backslash before a character that needs none stays (`\d` are two characters).

    Raises ValueError with what is wrong.
    """

    def undone(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code is None:
            if found[4] in "xuU":
                raise ValueError(f"the escape \\{found[4]} without its hexadecimal digits")
            return _PLAIN.get(found[4], found[0])
        number = int(code, 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise ValueError(f"the escape {found[0]}, which is no character")
        return chr(number)

    return _ESCAPE.sub(undone, inside)


def text_node(nodes: Nodes, text: str, *, ignore_case: bool) -> Node:
    if not ignore_case:
        return nodes.text(text)
    return nodes.sequence([nodes.chars(LARK.any_case(normal([(ord(c), ord(c))]))) for c in text])


def range_node(nodes: Nodes, first: str, last: str) -> Node:
    """Raises ValueError with what is wrong."""
    if len(first) != 1 or len(last) != 1:
        raise ValueError("a range needs a single character on both sides")
    if first > last:
        raise ValueError("a range out of order")
    return nodes.chars(normal([(ord(first), ord(last))]))


def regex_node(nodes: Nodes, pattern: str, flags: str) -> Node:
    """Raises GrammarRefused, whose `at` is the place in `pattern` if one place is to blame."""
    if unknown := sorted(set(flags) - set(_FLAGS)):
        raise GrammarRefused(f"the flag {unknown[0]} isn't supported; those that are: {', '.join(_FLAGS)}")
    read = _VERBOSE.sub(_without_blanks, pattern) if "x" in flags else pattern
    try:
        tree = parse(read, LARK, flags)
        node = Splitter(nodes).split(tree).plain
    except GrammarRefused as refused:
        refused.at = refused.at if read == pattern else None
        raise
    if excessive(node):
        raise GrammarRefused("this regex can be read in thousands of ways at once; lower its counts")
    return node


_VERBOSE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\s+|#[^\n]*", re.DOTALL)
"""Pieces of a regex with the flag x: an escape or a class, which stay as they are, blanks, a comment."""


def _without_blanks(found: re.Match[str]) -> str:
    return "" if found[0][0] == "#" or found[0].isspace() else found[0]
