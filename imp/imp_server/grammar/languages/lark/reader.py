"""Reads the text of a lark grammar. Names stay names; strings and regexes become expressions at once.

A definition ends with its line, unless the next one that isn't blank begins with `|`; inside brackets lines may end
anywhere. Priorities, aliases and the marks before a rule's name (`!`, `?`) shape lark's tree, not the language: they
are read over.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from imp_server.core import GrammarRefused
from imp_server.grammar.languages.lark.literals import range_node, regex_node, text_node, unescaped
from imp_server.grammar.languages.lark.terminals import COMMON
from imp_server.grammar.languages.lark.tree import (
    Definition,
    Expression,
    LarkGrammar,
    LarkRow,
    Literal,
    Options,
    Ref,
    Times,
    is_terminal,
)
from imp_server.grammar.languages.positions import position
from imp_server.grammar.machines.nodes import INFINITE, Node, Nodes

MAX_LENGTH = 262_144
MAX_DEPTH = 64

_BLANKS = re.compile(r"(?:[ \t]|\\[ ]*\r?\n|//[^\n]*|#[^\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|\\[ ]*\r?\n|//[^\n]*|#[^\n]*)*")
_RULE = re.compile(r"[!?]{0,2}(_?[a-z][_a-z0-9]*)")
_TERMINAL = re.compile(r"(_?[A-Z][_A-Z0-9]*)")
_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"(i?)')
_REGEX = re.compile(r"/(?![/*])((?:\\.|[^/\\])*)/([a-z]*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")
_DIRECTIVE = re.compile(r"%[a-z_]*")


def read(text: str, nodes: Nodes) -> LarkGrammar:
    """Raises GrammarRefused, naming line and column."""
    if len(text) > MAX_LENGTH:
        raise GrammarRefused(f"the grammar has {len(text)} characters; at most {MAX_LENGTH} are supported")
    reader = _LarkReader(text, nodes)
    reader.whole()
    return reader.grammar


class _LarkReader:
    def __init__(self, text: str, nodes: Nodes) -> None:
        self.text = text
        self.at = 0
        self.nodes = nodes
        self.grammar = LarkGrammar({}, {}, {}, [])

    def refuse(self, what: str, at: int | None = None) -> GrammarRefused:
        return GrammarRefused(f"{position(self.text, self.at if at is None else at)}: {what}")

    def match(self, wanted: re.Pattern[str]) -> re.Match[str] | None:
        found = wanted.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def take(self, text: str) -> bool:
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def space(self, depth: int = 0) -> None:
        self.match(_LINES if depth else _BLANKS)

    def shown(self) -> str:
        """What stands here, for an error."""
        rest = self.text[self.at : self.at + 20].partition("\n")[0]
        return f"not {rest!r}" if rest else "not the end of the line" if self.at < len(self.text) else "not the end"

    # --- definitions ------------------------------------------------------------------------

    def whole(self) -> None:
        self.match(_LINES)
        while self.at < len(self.text):
            self.item()
            if self.at < len(self.text) and self.text[self.at] not in "\r\n":
                raise self.refuse(f"a string, a regex, a name, an operator or the end of the line is expected, "
                                  f"{self.shown()}")  # fmt: skip
            self.match(_LINES)

    def item(self) -> None:
        start = self.at
        if found := self.match(_DIRECTIVE):
            self.directive(found[0], start)
        elif found := self.match(_TERMINAL) or self.match(_RULE):
            self.definition(found[1], start)
        else:
            raise self.refuse(f"a rule, a terminal or a directive is expected, {self.shown()}")
        self.space()

    def definition(self, name: str, start: int) -> None:
        if self.text.startswith("{", self.at):
            raise self.refuse(f"{name}{{...}} is a template; templates aren't supported: write its rules out", start)
        if self.take(".") and not self.match(_NUMBER):
            raise self.refuse(f"a priority is a number, {self.shown()}")
        self.space()
        if not self.take(":"):
            raise self.refuse(f": is expected after {name}, {self.shown()}")
        self.space()
        self.define(name, self.alternatives(0), start)

    def define(self, name: str, body: Expression, start: int) -> None:
        known = self.grammar.terminals if is_terminal(name) else self.grammar.rules
        if name in known or name in self.grammar.imports:
            raise self.refuse(f"{name} is defined twice", start)
        known[name] = Definition(body, start)

    def directive(self, name: str, start: int) -> None:
        self.space()
        if name == "%ignore":
            self.grammar.ignored.append(self.alternatives(0))
        elif name == "%import":
            self.imports(start)
        else:
            raise self.refuse(
                f"the directive {name} isn't supported; those that are: %ignore, %import common.NAME", start
            )

    def imports(self, start: int) -> None:
        if not self.take("common"):
            raise self.refuse(f"only lark's `common` can be imported, {self.shown()}")
        self.space()
        if self.take("."):
            source, at = self.terminal_name()
            self.space()
            local = source
            if self.take("->"):
                self.space()
                local, _ = self.terminal_name()
            self.bring(source, local, at)
        elif self.take("("):
            while True:
                self.space(1)
                source, at = self.terminal_name()
                self.bring(source, source, at)
                self.space(1)
                if not self.take(","):
                    break
            if not self.take(")"):
                raise self.refuse(f") is expected, {self.shown()}")
        else:
            raise self.refuse("an import is %import common.NAME or %import common (NAME, NAME)", start)

    def terminal_name(self) -> tuple[str, int]:
        at = self.at
        found = self.match(_TERMINAL)
        if found is None:
            raise self.refuse(f"the name of a terminal is expected, {self.shown()}")
        return found[1], at

    def bring(self, source: str, local: str, at: int) -> None:
        if source not in COMMON:
            raise self.refuse(f"`common` has no terminal {source} (it has {', '.join(COMMON)})", at)
        if local in self.grammar.terminals or self.grammar.imports.get(local, source) != source:
            raise self.refuse(f"{local} is defined twice", at)
        self.grammar.imports[local] = source

    # --- expressions ------------------------------------------------------------------------

    def alternatives(self, depth: int) -> Expression:
        options = [self.row(depth)]
        while self.bar(depth):
            self.space(depth)
            options.append(self.row(depth))
        return options[0] if len(options) == 1 else Options(tuple(options))

    def bar(self, depth: int) -> bool:
        """Whether another alternative follows, on a later line perhaps."""
        at = self.at
        self.match(_LINES)
        if self.take("|"):
            return True
        if depth == 0:
            self.at = at
        return False

    def row(self, depth: int) -> Expression:
        parts: list[Expression] = []
        while (part := self.atom(depth)) is not None:
            parts.append(self.repeated(part, depth))
            self.space(depth)
        if self.take("->"):
            self.space(depth)
            if not self.match(_RULE):
                raise self.refuse(f"an alias is a name in small letters, {self.shown()}")
            self.space(depth)
        return parts[0] if len(parts) == 1 else LarkRow(tuple(parts))

    def atom(self, depth: int) -> Expression | None:
        start = self.at
        char = self.text[self.at : self.at + 1]
        if char == '"':
            return self.string()
        if char == "/":
            return self.regex()
        if char in ("(", "["):
            return self.group(char, depth)
        if char in ("<", "@", "$", "%", "&"):
            raise self.refuse(f"{char} has no meaning in the body of a definition")
        if char in ("*", "+", "?", "~"):
            raise self.refuse(f"nothing before {char} to repeat")
        found = self.match(_TERMINAL) or (self.match(_RULE) if char not in ("!", "?") else None)
        if found is None:
            return None
        if self.text.startswith("{", self.at):
            raise self.refuse(
                f"{found[1]}{{...}} is a template; templates aren't supported: write its rules out", start
            )
        return Ref(found[1], start)

    def group(self, opener: str, depth: int) -> Expression:
        start = self.at
        if depth >= MAX_DEPTH:
            raise self.refuse(f"groups nested deeper than {MAX_DEPTH}")
        self.at += 1
        self.space(1)
        inner = self.alternatives(depth + 1)
        closer = ")" if opener == "(" else "]"
        if not self.take(closer):
            if self.at >= len(self.text):
                raise self.refuse(f"this {opener} is never closed", start)
            raise self.refuse(f"{closer} is expected, {self.shown()}")
        return inner if opener == "(" else Times(inner, 0, 1)

    def repeated(self, part: Expression, depth: int) -> Expression:
        self.space(depth)
        for operator, low, high in (("*", 0, INFINITE), ("+", 1, INFINITE), ("?", 0, 1)):
            if self.take(operator):
                return Times(part, low, high)
        start = self.at
        if not self.take("~"):
            return part
        low = self.count(depth)
        self.space(depth)
        high = self.count(depth) if self.take("..") else low
        if low > high:
            raise self.refuse("a repetition whose minimum exceeds its maximum", start)
        return Times(part, low, high)

    def count(self, depth: int) -> int:
        self.space(depth)
        found = self.match(_NUMBER)
        if found is None or int(found[0]) < 0:
            raise self.refuse("a number of repetitions is expected" if found is None else "a negative count")
        return int(found[0])

    # --- literals ---------------------------------------------------------------------------

    def string(self) -> Expression:
        start = self.at
        found = self.match(_STRING)
        if found is None:
            raise self.refuse("an unclosed string")
        self.space()
        if self.take(".."):
            self.space()
            other = self.match(_STRING)
            if other is None or found[2] or other[2]:
                raise self.refuse('a range is "a".."z"', start)
            return self.literal(lambda: range_node(self.nodes, unescaped(found[1]), unescaped(other[1])), start)
        ignore_case = bool(found[2])
        return self.literal(lambda: text_node(self.nodes, unescaped(found[1]), ignore_case=ignore_case), start)

    def regex(self) -> Expression:
        start = self.at
        found = self.match(_REGEX)
        if found is None:
            raise self.refuse("an unclosed regex")
        if "\n" in found[1] and "x" not in found[2]:
            raise self.refuse("a regex goes over several lines only with the flag x", start)
        return self.literal(lambda: regex_node(self.nodes, found[1], found[2]), start)

    def literal(self, make: Callable[[], Node], start: int) -> Literal:
        try:
            return Literal(make(), self.at - start)
        except ValueError as error:
            raise self.refuse(str(error), start) from None
        except GrammarRefused as refused:
            inside = 0 if refused.at is None else refused.at + 1
            raise self.refuse(refused.message, start + inside) from None
