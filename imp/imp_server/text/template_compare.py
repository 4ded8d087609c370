"""What comparing costs in a template: each value that is looked at is paid for before it is.

Lists that hold the same list twice, level for level, are small in memory and without an end to whoever compares or
hashes them. Texts are compared at once, but not in no time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes

from imp_server.text.template_budget import budget, text_size

COMPARED, LOOKED_AT = "imp_compared", "imp_looked_at"
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
TESTS = {
    "==": "eq", "eq": "eq", "equalto": "eq", "!=": "ne", "ne": "ne", ">": "gt", "gt": "gt", "greaterthan": "gt",
    ">=": "gteq", "ge": "gteq", "<": "lt", "lt": "lt", "lessthan": "lt", "<=": "lteq", "le": "lteq", "in": "in",
}  # fmt: skip
"""The operator that a test means."""
_PER_STEP = 1024
"""Characters of texts that are compared or searched in the time of a step."""
_NOTHING: dict[str, Any] = {}
_KEYS: Any = type(_NOTHING.keys())
_VIEWS: tuple[Any, ...] = (_KEYS, type(_NOTHING.values()), type(_NOTHING.items()))
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, *_VIEWS)
_SIZED: tuple[Any, ...] = (str, *_CONTAINERS)


def pay_for(value: Any) -> None:
    """For all that `value` holds, once for each way to it: whoever compares or hashes it goes all of them."""
    if isinstance(value, str | bytes):
        if len(value) > _PER_STEP:
            budget().step(len(value) // _PER_STEP)
    elif isinstance(value, _CONTAINERS):
        _pay_for_all(value)


def _pay_for_all(value: Any) -> None:
    left = budget()
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, Mapping):
            left.step(1 + len(one))
            todo += one.keys()
            todo += one.values()
        elif isinstance(one, _CONTAINERS):
            left.step(1 + len(one))
            todo += one
        elif isinstance(one, str | bytes):
            left.step(len(one) // _PER_STEP)


def compared(op: str, left: Any, right: Any) -> Any:
    """What the operator says, paid for: of two values one, as neither is looked at any further than the other goes."""
    if op in ("in", "notin"):
        _pay_for_search(left, right)
    elif type(left) is type(right) and isinstance(left, _SIZED):
        both: list[Any] = [left, right]
        if op not in ("eq", "ne") or len(both[0]) == len(both[1]):
            pay_for(min(both, key=len))
    return OPERATORS[op](left, right)


def _pay_for_search(left: Any, right: Any) -> None:
    """Dictionaries are asked for one key; only a container is compared with what containers in a list hold."""
    pay_for(left)
    if isinstance(right, Mapping | _KEYS):
        return
    if isinstance(right, list | tuple) and not isinstance(left, _CONTAINERS):
        budget().step(len(right) * (1 + (len(left) if isinstance(left, str) else 0) // _PER_STEP))
    else:
        pay_for(right)


def written(test: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A test of the text that a value is written with."""

    def paid(value: Any) -> Any:
        budget().make(text_size(value))
        return test(value)

    return paid


def priced(node: nodes.Compare) -> nodes.Expr:
    """The comparison with a price on it, where it may be a dear one."""
    if all(_is_cheap(operand) for operand in node.ops):
        return node
    if len(node.ops) == 1:
        op = nodes.Const(node.ops[0].op, lineno=node.lineno)
        return _filtered(node.expr, COMPARED, [node.ops[0].expr, op])
    node.expr = looked_at(node.expr)
    for operand in node.ops:
        operand.expr = looked_at(operand.expr)
    return node


def looked_at(node: nodes.Expr) -> nodes.Expr:
    """The same, paid for where it isn't a constant."""
    return node if _is_short(node) else _filtered(node, LOOKED_AT, [])


def _is_cheap(operand: nodes.Operand) -> bool:
    """Whether a short text, a number or a list of such stands behind the operator."""
    listed = operand.expr.items if isinstance(operand.expr, nodes.List | nodes.Tuple) else [operand.expr]
    return all(map(_is_short, listed))


def _is_short(node: nodes.Expr) -> bool:
    return isinstance(node, nodes.Const) and not (isinstance(node.value, str) and len(node.value) > _PER_STEP)


def _filtered(node: nodes.Expr, name: str, args: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(node, name, args, [], None, None, lineno=node.lineno)
