"""A lark grammar as a machine: the texts that the rule `start` derives.

The language is that of lark's Earley parser with `lexer="dynamic_complete"`: a grammar over characters. A terminal
matches whatever its regex matches as a whole, however long, and what is ignored may stand before every terminal and at
the end. Two things go beyond lark: terminals may match nothing, and left recursion costs nothing.
"""

from __future__ import annotations

from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.languages.lark.literals import regex_node
from imp_server.grammar.languages.lark.reader import read
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
from imp_server.grammar.languages.left_recursion import without_left_recursion
from imp_server.grammar.languages.positions import position
from imp_server.grammar.languages.rules import GrammarRules, RuleRefused, settle
from imp_server.grammar.machines.ambiguity import excessive
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.nodes import INFINITE, Node
from imp_server.grammar.machines.terms import TermMachine

MAX_SHORTEST = 1_000_000
"""Bytes of the shortest text that a rule, or what is left of one, may have."""
MAX_CHAIN = 100
"""Terminals inside terminals."""
MAX_WRITTEN_OUT = 262_144
"""Characters of all rules with their terminals put in: terminals made of terminals double with each."""
_ROOT = "start, and what may be ignored behind it"
"""No name of a rule."""


@remembered(maxsize=64)
def compile_lark(text: str) -> TermMachine:
    """Raises GrammarRefused, naming line and column, and GrammarUnsatisfiable if `start` derives no finite text."""
    rules = GrammarRules()
    grammar = read(text, rules.nodes)
    _Builder(text, grammar, rules).whole()
    try:
        without_left_recursion(rules, _ROOT)
        nodes, root, bodies = settle(rules, _ROOT)
    except RuleRefused as refused:
        blamed = grammar.rules.get(refused.rule.partition(" ")[0])
        where = f"{position(text, blamed.at)}: " if blamed is not None else ""
        raise GrammarRefused(where + refused.message) from None
    if root is nodes.never:
        raise GrammarUnsatisfiable("the rule start derives no finite text")
    for name, body in zip(rules.names, bodies, strict=True):
        if body is nodes.never:
            continue
        where = f"{position(text, grammar.rules[name].at)}: " if name in grammar.rules else ""
        if excessive(body):
            raise GrammarRefused(f"{where}rule {name} can be read in thousands of ways at once; lower its counts")
        if body.reach > MAX_SHORTEST:
            raise GrammarRefused(f"{where}rule {name} needs texts of more than {MAX_SHORTEST} characters")
    return TermMachine(nodes, root, bodies)


class _Builder:
    """Looks names up and writes each rule's body to `rules`."""

    def __init__(self, text: str, grammar: LarkGrammar, rules: GrammarRules) -> None:
        self.text = text
        self.grammar = grammar
        self.rules = rules
        self.nodes = rules.nodes
        self._terminals: dict[str, Node] = {}
        self._sizes: dict[str, int] = {}
        self._written_out = 0
        self._open: list[str] = []
        self._skipped = self.nodes.empty

    def refuse(self, what: str, at: int) -> GrammarRefused:
        return GrammarRefused(f"{position(self.text, at)}: {what}")

    def whole(self) -> None:
        if "start" not in self.grammar.rules:
            raise GrammarRefused("the grammar has no rule named start")
        for name in self.grammar.terminals:
            self._named(name)
        ignored = self.nodes.either([self._inside_terminal(part) for part in self.grammar.ignored])
        if self.grammar.ignored:
            self._skipped = self.nodes.loop(ignored, 0, INFINITE)
        for name, definition in self.grammar.rules.items():
            self._written_out += self._size(definition)
            if self._written_out > MAX_WRITTEN_OUT:
                raise self.too_long(f"the rules up to {name}", definition)
            self.rules.bodies[name] = self._inside_rule(definition.body)
        self.rules.bodies[_ROOT] = self.nodes.sequence([self.rules.reference("start"), self._skipped])

    def too_long(self, what: str, definition: Definition) -> GrammarRefused:
        return self.refuse(f"{what}, terminals put in, have more than {MAX_WRITTEN_OUT} characters", definition.at)

    def _size(self, definition: Definition) -> int:
        """Characters of a body with the terminals in it put in. They are looked up, and so checked, on the way."""
        total, todo = 0, [definition.body]
        while todo:
            part = todo.pop()
            if isinstance(part, Literal):
                total += part.size
            elif isinstance(part, LarkRow):
                todo += part.parts
            elif isinstance(part, Options):
                todo += part.options
            elif isinstance(part, Times):
                todo.append(part.part)
            elif is_terminal(part.name):
                self._terminal(part)
                total += self._sizes[part.name]
        return total

    def _inside_rule(self, part: Expression) -> Node:
        if isinstance(part, Literal):
            return self._token(part.node)
        if isinstance(part, Ref):
            if is_terminal(part.name):
                return self._token(self._terminal(part))
            if part.name not in self.grammar.rules:
                raise self.refuse(f"the rule {part.name} isn't defined", part.at)
            return self.rules.reference(part.name)
        if isinstance(part, LarkRow):
            return self.nodes.sequence([self._inside_rule(p) for p in part.parts])
        if isinstance(part, Options):
            return self.nodes.either([self._inside_rule(p) for p in part.options])
        return self.nodes.loop(self._inside_rule(part.part), part.low, part.high)

    def _token(self, node: Node) -> Node:
        return self.nodes.sequence([self._skipped, node])

    def _inside_terminal(self, part: Expression) -> Node:
        if isinstance(part, Literal):
            return part.node
        if isinstance(part, Ref):
            return self._terminal(part)
        if isinstance(part, LarkRow):
            return self.nodes.sequence([self._inside_terminal(p) for p in part.parts])
        if isinstance(part, Options):
            return self.nodes.either([self._inside_terminal(p) for p in part.options])
        return self.nodes.loop(self._inside_terminal(part.part), part.low, part.high)

    def _terminal(self, ref: Ref) -> Node:
        name = ref.name
        if not is_terminal(name):
            raise self.refuse(f"the rule {name} can't stand inside a terminal; write it in capitals", ref.at)
        if name not in self.grammar.terminals and name not in self.grammar.imports:
            hint = f" (%import common.{name} brings it)" if name in COMMON else ""
            raise self.refuse(f"the terminal {name} isn't defined{hint}", ref.at)
        if name in self._open:
            raise self.refuse(f"the terminal {name} is made of itself; write it as a rule in small letters", ref.at)
        if len(self._open) >= MAX_CHAIN:
            raise self.refuse(f"terminals nested deeper than {MAX_CHAIN}", ref.at)
        return self._named(name)

    def _named(self, name: str) -> Node:
        found = self._terminals.get(name)
        if found is None:
            self._open.append(name)
            if name in self.grammar.imports:
                pattern = COMMON[self.grammar.imports[name]]
                found, self._sizes[name] = regex_node(self.nodes, pattern, ""), len(pattern)
            else:
                found = self._defined(name, self.grammar.terminals[name])
            self._terminals[name] = found
            self._open.pop()
        return found

    def _defined(self, name: str, definition: Definition) -> Node:
        size = self._sizes[name] = self._size(definition)
        if size > MAX_WRITTEN_OUT:
            raise self.too_long(f"the parts of {name}", definition)
        node = self._inside_terminal(definition.body)
        if excessive(node):
            raise self.refuse(f"the terminal {name} can be read in thousands of ways at once", definition.at)
        return node
