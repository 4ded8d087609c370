"""A grammar that somebody has written down, in one of the languages there are, as the machine of its texts."""

from __future__ import annotations

from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.languages.gbnf import compile_gbnf
from imp_server.grammar.languages.lark.compile import compile_lark
from imp_server.grammar.languages.positions import position
from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.machines.machine import DEAD, Machine

GRAMMAR_KEYWORD = "x-imp-grammar"
"""Our own keyword of JSON Schema: the string is a text of {"syntax": one of SYNTAXES, "definition": ...}."""
SYNTAXES = ("regex", "lark", "gbnf")


def definition_machine(syntax: str, definition: str) -> Machine:
    """The texts that it matches as a whole.

    Raises GrammarRefused, naming line and column where one place is to blame, and GrammarUnsatisfiable.
    """
    try:
        machine = _machine(syntax, definition)
    except RecursionError:
        raise GrammarRefused("the grammar is nested too deeply") from None
    except GrammarRefused as refused:
        if refused.at is None:
            raise
        raise GrammarRefused(f"{position(definition, refused.at)}: {refused.message}", at=refused.at) from None
    if machine.start == DEAD:
        raise GrammarUnsatisfiable(f"no text satisfies this {syntax}")
    return machine


def _machine(syntax: str, definition: str) -> Machine:
    if syntax == "regex":
        return compile_regex(definition, search=False)
    if syntax == "lark":
        return compile_lark(definition)
    if syntax == "gbnf":
        return compile_gbnf(definition)
    raise GrammarRefused(f"the syntax {syntax!r} isn't supported; those that are: {', '.join(SYNTAXES)}")
