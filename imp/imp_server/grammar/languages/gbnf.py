"""llama.cpp's GBNF as a machine: a pushdown automaton whose states are interned sets of stacks (terms.py).

Rules are read as llama.cpp reads them; besides, a line may begin with `|`, and names may hold `_`. Token references
(`<think>`, `<[1000]>`) are refused, and so is a second definition of a rule, of which llama.cpp keeps the last.
"""

from __future__ import annotations

from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.languages.positions import position
from imp_server.grammar.languages.rules import GrammarRules, settle
from imp_server.grammar.machines.ambiguity import excessive
from imp_server.grammar.machines.codepoints import ANY, Ranges, negated, normal
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.nodes import INFINITE, Node
from imp_server.grammar.machines.terms import TermMachine

MAX_LENGTH = 262_144
MAX_DEPTH = 64
MAX_SHORTEST = 1_000_000
"""Bytes of the shortest text that a rule, or what is left of one, may have."""

_ESCAPES = {"t": 9, "r": 13, "n": 10, "\\": 92, '"': 34, "[": 91, "]": 93, "/": 47, "-": 45, "^": 94}
_HEX = {"x": 2, "u": 4, "U": 8}


@remembered(maxsize=64)
def compile_gbnf(text: str) -> TermMachine:
    """The texts that the rule `root` derives.

    Raises GrammarRefused for bad syntax, undefined rules and left recursion, naming line and rule, and
    GrammarUnsatisfiable if the root derives nothing.
    """
    if len(text) > MAX_LENGTH:
        raise GrammarRefused(f"the grammar has {len(text)} characters; at most {MAX_LENGTH} are supported")
    rules = GrammarRules()
    _GbnfParser(text, rules).whole()
    if "root" not in rules.bodies:
        raise GrammarRefused("the grammar has no rule named root")
    nodes, root, bodies = settle(rules)
    if root is nodes.never:
        raise GrammarUnsatisfiable("the rule root derives no finite text")
    for name, body in zip(rules.names, bodies, strict=True):
        if body is nodes.never:
            continue
        if excessive(body):
            raise GrammarRefused(f"rule {name} can be read in thousands of ways at once; lower its counts")
        if body.reach > MAX_SHORTEST:
            raise GrammarRefused(f"rule {name} needs texts of more than {MAX_SHORTEST} characters")
    return TermMachine(nodes, root, bodies)


class _GbnfParser:
    """Recursive descent over the grammar's text; expressions go to `rules` as they are read."""

    def __init__(self, text: str, rules: GrammarRules) -> None:
        self.text = text
        self.at = 0
        self.rules = rules
        self.nodes = rules.nodes

    def refuse(self, what: str) -> GrammarRefused:
        return GrammarRefused(f"grammar, {position(self.text, self.at)}: {what}")

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self, text: str) -> bool:
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def space(self, newlines: bool) -> None:
        """Skip blanks and comments, and line ends if they may stand here."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t" or (newlines and char in "\r\n"):
                self.at += 1
            else:
                break

    def name(self) -> str:
        start = self.at
        while _in_names(self.peek()):
            self.at += 1
        if start == self.at:
            raise self.refuse("the name of a rule is expected")
        return self.text[start : self.at]

    def whole(self) -> None:
        self.space(newlines=True)
        while self.at < len(self.text):
            name = self.name()
            self.space(newlines=False)
            if not self.take("::="):
                raise self.refuse(f"::= is expected after {name}")
            if name in self.rules.bodies:
                raise self.refuse(f"rule {name} is defined twice")
            self.space(newlines=True)
            self.rules.bodies[name] = self.alternatives(0)
            if self.peek() not in ("", "\r", "\n"):
                raise self.refuse("the end of the line is expected")
            self.space(newlines=True)

    def alternatives(self, depth: int) -> Node:
        options = [self.row(depth)]
        while self.bar(depth):
            self.space(newlines=True)
            options.append(self.row(depth))
        return self.nodes.either(options)

    def bar(self, depth: int) -> bool:
        """Whether another alternative follows, on the next line perhaps."""
        at = self.at
        self.space(newlines=True)
        if self.take("|"):
            return True
        if depth == 0:
            self.at = at
        return False

    def row(self, depth: int) -> Node:
        parts: list[Node] = []
        while True:
            part = self.atom(depth)
            if part is None:
                return self.nodes.sequence(parts)
            self.space(newlines=depth > 0)
            parts.append(self.quantified(part, depth))

    def atom(self, depth: int) -> Node | None:
        char = self.peek()
        if char == '"':
            return self.literal()
        if char == "[":
            return self.nodes.chars(self.char_class())
        if char == ".":
            self.at += 1
            return self.nodes.chars(ANY)
        if char == "(":
            if depth >= MAX_DEPTH:
                raise self.refuse(f"groups nested deeper than {MAX_DEPTH}")
            self.at += 1
            self.space(newlines=True)
            inner = self.alternatives(depth + 1)
            if not self.take(")"):
                raise self.refuse(") is expected")
            return inner
        if char and char in "<!":
            raise self.refuse("token references aren't supported: write the token's text")
        if char and char in "*+?{":
            raise self.refuse(f"nothing before {char} to repeat")
        if _in_names(char):
            return self.rules.reference(self.name())
        return None

    def quantified(self, part: Node, depth: int) -> Node:
        while True:
            if self.take("*"):
                low, high = 0, INFINITE
            elif self.take("+"):
                low, high = 1, INFINITE
            elif self.take("?"):
                low, high = 0, 1
            elif self.take("{"):
                low, high = self.bounds()
            else:
                return part
            part = self.nodes.loop(part, low, high)
            self.space(newlines=depth > 0)

    def bounds(self) -> tuple[int, int]:
        """The rest of {m}, {m,}, {m,n} or {,n}."""
        end = self.text.find("}", self.at)
        inside = self.text[self.at : end] if end >= 0 else ""
        low, comma, high = (part.strip() for part in inside.partition(","))
        if not all(c in "0123456789" for c in low + high) or not (low or high) or len(inside) > 40:
            raise self.refuse("a repetition is {m}, {m,} or {m,n}")
        self.at = end + 1
        least = int(low or 0)
        most = least if not comma else int(high) if high else INFINITE
        if least > most:
            raise self.refuse("a repetition whose minimum exceeds its maximum")
        return least, most

    def literal(self) -> Node:
        self.at += 1
        parts: list[Node] = []
        while not self.take('"'):
            parts.append(self.nodes.chars(normal([(code := self.char(), code)])))
        return self.nodes.sequence(parts)

    def char_class(self) -> Ranges:
        self.at += 1
        negate = self.take("^")
        found: list[tuple[int, int]] = []
        while not self.take("]"):
            low = high = self.char()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self.char()
            if low > high:
                raise self.refuse("a range out of order")
            found.append((low, high))
        ranges = normal(found)
        return negated(ranges) if negate else ranges

    def char(self) -> int:
        """One character of a literal or a class, escapes undone."""
        char = self.peek()
        if char in ("", "\n", "\r"):
            raise self.refuse("an unclosed literal or class")
        self.at += 1
        if char != "\\":
            return ord(char)
        kind = self.peek()
        self.at += 1
        if kind in _HEX:
            digits = self.text[self.at : self.at + _HEX[kind]]
            if len(digits) < _HEX[kind] or any(c not in "0123456789abcdefABCDEF" for c in digits):
                raise self.refuse(f"\\{kind} needs {_HEX[kind]} hexadecimal digits")
            self.at += len(digits)
            if int(digits, 16) > 0x10FFFF:
                raise self.refuse("no such code point")
            return int(digits, 16)
        if kind not in _ESCAPES:
            raise self.refuse(f"unknown escape \\{kind}")
        return _ESCAPES[kind]


def _in_names(char: str) -> bool:
    return char != "" and (char in "-_" or (char.isascii() and char.isalnum()))
