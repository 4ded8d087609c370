"""Expressions in cases: a safe subset of Python over the replies of a case.

Allowed: literals, names, attributes and items of replies, comparisons, boolean and arithmetic operators,
comprehensions, and calls of the functions listed in vocabulary.py. Nothing else is evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from imp_server.core import ConfigError

_ALLOWED = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Store, ast.Attribute, ast.Subscript, ast.Slice, ast.Compare,
    ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.And, ast.Or, ast.Not, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div,
    ast.Mod, ast.FloorDiv, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot,
    ast.List, ast.Tuple, ast.Set, ast.Dict, ast.IfExp, ast.Call, ast.keyword, ast.GeneratorExp, ast.ListComp,
    ast.SetComp, ast.DictComp, ast.comprehension, ast.Starred,
)  # fmt: skip
_METHODS = frozenset(
    {"startswith", "endswith", "split", "strip", "lower", "upper", "join", "count", "index", "get", "encode", "decode",
     "removeprefix", "rstrip", "lstrip", "replace", "find", "isascii", "keys", "items", "values"}
)  # fmt: skip


@lru_cache(4096)
def compiled(expression: str) -> CodeType:
    """Raises ConfigError for anything outside the subset."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise ConfigError(f"conformance expression {expression!r}: {error.msg}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ConfigError(f"conformance expression {expression!r}: {type(node).__name__} is not allowed")
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            raise ConfigError(f"conformance expression {expression!r}: '{node.attr}' is not allowed")
        if isinstance(node, ast.Call):
            called = node.func
            named = isinstance(called, ast.Name) or (isinstance(called, ast.Attribute) and called.attr in _METHODS)
            if not named:
                raise ConfigError(f"conformance expression {expression!r}: only listed functions may be called")
    return compile(tree, "<case>", "eval")


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of `expression`; whatever it raises is for the caller to report as a failed check."""
    return eval(compiled(expression), {"__builtins__": {}, **names})
