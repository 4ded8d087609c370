"""How large what a filter, a method or an operator makes will be. Each raises LimitExceeded before it is made."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import Environment
from jinja2.filters import make_attrgetter

from imp_server.text.template_budget import MAX_PRODUCT, LimitExceeded, budget, text_size
from imp_server.text.template_compare import pay_for

MAX_BITS = 1 << 16
"""Of a number."""
_BITS_PER_STEP = 1 << 21
"""Of one number times those of the other, in the time of a step."""
MAX_WIDTH = 10_000
"""Columns that a format may fill up to."""
_MAX_INDENT = 64
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?(.)", re.DOTALL)
_WIDTH = re.compile(r"\d+")


def make(size: Any) -> None:
    """Pay for it, where it is a number at all: what isn't raises an error of its own."""
    if isinstance(size, int):
        budget().make(size)


def bound_operation(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _bound_numbers(operator, left, right)
    elif operator == "*":
        for items, times in ((left, right), (right, left)):
            if isinstance(items, str | bytes | list | tuple) and isinstance(times, int):
                make(len(items) * max(times, 0))
    elif operator == "-":  # of what dictionaries hold
        pay_for(left)
        pay_for(right)
    elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        make(len(left) + len(right))
    elif operator == "%" and isinstance(left, str | bytes):
        if isinstance(left, bytes):
            raise LimitExceeded("it formats bytes")
        bound_percent(left, right)


def _bound_numbers(operator: str, left: int, right: int) -> None:
    bits = max(left.bit_length(), right.bit_length())
    work = left.bit_length() * right.bit_length()
    if operator == "*":
        bits = left.bit_length() + right.bit_length()
    elif operator == "**":
        bits = left.bit_length() * max(right, 0)
        work = bits * bits
    if bits > MAX_BITS:
        raise LimitExceeded("it makes a number of more than 65536 bits")
    if work > _BITS_PER_STEP:
        budget().step(work // _BITS_PER_STEP)


def bound_percent(form: str, values: Any) -> None:
    """`form % values`"""
    listed = values if isinstance(values, tuple) else (values,)
    given = list(values.values()) if isinstance(values, Mapping) else list(listed)
    widest = max((text_size(value) for value in given), default=0)
    size = len(form)
    for width, precision, _ in _PERCENT.findall(form):
        for number in (width, precision):
            columns = [v for v in given if isinstance(v, int)] if number == "*" else [int(number or 0)]
            if max(columns, default=0) > MAX_WIDTH or min(columns, default=0) < -MAX_WIDTH:
                raise LimitExceeded(f"it fills a text up to more than {MAX_WIDTH} columns")
        size += widest + MAX_WIDTH * bool(width or precision)
    make(size)


def bound_format(form: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """`form.format(...)`"""
    widest = max((text_size(value) for value in (*args, *kwargs.values())), default=0)
    size = len(form)
    for _, name, spec, _ in string.Formatter().parse(form):
        if name is None:
            continue
        if "{" in (spec or "") or any(int(n) > MAX_WIDTH for n in _WIDTH.findall(spec or "")):
            raise LimitExceeded(f"it fills a text up to more than {MAX_WIDTH} columns")
        size += widest + MAX_WIDTH * bool(spec)
    make(size)


# --- methods ------------------------------------------------------------------------------------

_COMPARING = frozenset({"index", "count"})
_FILLING = frozenset({"ljust", "rjust", "center", "zfill"})
_SPLITTING = frozenset({"split", "rsplit", "splitlines", "partition", "rpartition"})


def bound_method(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Of a text, a number or a list; anything else is free."""
    function = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
    own = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if isinstance(own, bytes | bytearray) and name != "decode":
        raise LimitExceeded("it works on bytes")
    if isinstance(own, int) and name == "to_bytes":
        raise LimitExceeded("it works on bytes")
    if isinstance(own, list | tuple | dict):
        budget().step(len(own) // 8 + 1)
        if name in _COMPARING:
            pay_for((own, args))
        else:
            pay_for(tuple(value for value in args if isinstance(value, tuple)))
    if isinstance(own, str):
        _bound_text_method(own, name, args, kwargs)


def _bound_text_method(own: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if name in _FILLING and args:
        make(args[0])
    elif name == "expandtabs":
        columns = args[0] if args else kwargs.get("tabsize", 8)
        make(own.count("\t") * columns if isinstance(columns, int) else 0)
    elif name == "join" and args:
        make(_joined_size(args[0], own))
    elif name == "replace" and len(args) > 1:
        _bound_replace(own, *args)
    elif name == "format":
        bound_format(own, args, kwargs)
    elif name == "format_map":
        bound_format(own, (), args[0] if args and isinstance(args[0], Mapping) else {})
    elif name == "translate":
        raise LimitExceeded("it translates characters")
    else:
        make(3 * len(own) if name in _SPLITTING else len(own))


def _bound_replace(own: Any, old: Any, new: Any, count: Any = -1, *_: Any) -> None:
    if not (isinstance(own, str) and isinstance(old, str) and isinstance(new, str)):
        return
    times = own.count(old)
    if isinstance(count, int) and count >= 0:
        times = min(times, count)
    make(len(own) + times * max(0, len(new) - len(old)))


def _joined_size(items: Any, between: str) -> int:
    if not isinstance(items, list | tuple | dict | str):
        return 0  # an iterator: its items are paid for one by one, and what comes of it afterwards
    size = 0
    for item in items:
        size += text_size(item) + len(between)
        if size > MAX_PRODUCT:
            break
    return size


# --- filters ------------------------------------------------------------------------------------


def _center(_: Environment, value: Any, width: Any = 80) -> None:
    make(width)


def _indent(_: Environment, s: Any, width: Any = 4, *__: Any, **___: Any) -> None:
    columns = len(width) if isinstance(width, str) else width
    make(text_size(s) + (str(s).count("\n") + 1) * columns if isinstance(columns, int) else 0)


SHALLOW = frozenset(
    ("attr", "batch", "count", "d", "default", "dictsort", "first", "groupby", "items", "join", "last", "length",
     "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse", "select", "selectattr", "slice",
     "sort", "sum", "tojson", "unique")
)  # fmt: skip
"""Filters that don't write what they are given, or say in FILTER_SIZES what that takes."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _join(environment: Environment, value: Any, d: Any = "", attribute: Any = None) -> Arguments:
    """What is joined, as a list: an iterator can be looked at once only."""
    items: Iterable[Any] = value
    if attribute is not None:
        items = map(make_attrgetter(environment, attribute), items)
    listed = list(items)
    make(_joined_size(listed, str(d)))
    return (listed, d), {}


def _replace(_: Environment, s: Any, old: Any, new: Any, count: Any = None) -> None:
    _bound_replace(str(s), str(old), str(new), -1 if count is None else count)


def _format(_: Environment, value: Any, *args: Any, **kwargs: Any) -> None:
    bound_percent(str(value), kwargs or args)


def _tojson(_: Environment, value: Any, *args: Any, indent: Any = None, separators: Any = None, **__: Any) -> None:
    indent = args[1] if len(args) > 1 else indent
    separators = args[2] if len(args) > 2 else separators
    columns = len(indent) if isinstance(indent, str) else indent or 0
    widest = max(map(len, separators), default=0) if isinstance(separators, list | tuple) else 0
    if max(columns if isinstance(columns, int) else 0, widest) > _MAX_INDENT:
        raise LimitExceeded(f"it indents by more than {_MAX_INDENT} columns")
    n_lines = text_size(value)
    make(n_lines + (n_lines * columns if isinstance(columns, int) else 0))


def _wordwrap(_: Environment, s: Any, *args: Any, wrapstring: Any = None, **__: Any) -> None:
    between = args[2] if len(args) > 2 else wrapstring
    make(text_size(s) * (1 + len(between or "")))


def _parts(_: Environment, value: Any, n: Any, *__: Any, **___: Any) -> None:
    """Of batch and slice: how many there will be, or how long each may be."""
    if isinstance(n, int):
        budget().step(max(n, 0))


def _sum(_: Environment, iterable: Any, attribute: Any = None, start: Any = 0) -> Arguments | None:
    if isinstance(start, int | float):
        return None
    listed = list(iterable)
    n_items = sum(len(item) for item in listed if hasattr(item, "__len__")) if attribute is None else len(listed)
    budget().step(len(listed) * n_items)
    return (listed, attribute, start), {}


def _ordered(_: Environment, value: Any, *args: Any, **kwargs: Any) -> Arguments:
    """Of filters that compare, or hash, what they are given with itself."""
    listed = value if isinstance(value, dict) else list(value)
    for _turn in range(len(listed).bit_length()):
        pay_for(listed)
    return (listed, *args), kwargs


def _round(_: Environment, value: Any, precision: Any = 0, *__: Any) -> None:
    if isinstance(precision, int) and abs(precision) > 300:
        raise LimitExceeded("it rounds to more than 300 digits")


def _int(_: Environment, value: Any, *__: Any, **___: Any) -> None:
    if isinstance(value, str) and len(value) > 4300:
        raise LimitExceeded("it reads a number of more than 4300 digits")


def _written_out(_: Environment, value: Any, *__: Any, **___: Any) -> None:
    """Of filters that write whatever they are given, each character as six at most."""
    make(6 * text_size(value))


FILTER_SIZES: dict[str, Callable[..., Arguments | None]] = {
    "center": _center,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "format": _format,
    "tojson": _tojson,
    "wordwrap": _wordwrap,
    "batch": _parts,
    "slice": _parts,
    "sum": _sum,
    "round": _round,
    "int": _int,
    **dict.fromkeys(("sort", "unique", "min", "max", "groupby", "dictsort"), _ordered),
    **dict.fromkeys(
        ("string", "escape", "e", "forceescape", "urlencode", "striptags", "title", "trim", "upper", "lower"),
        _written_out,
    ),
}
"""By filter: called with its environment and arguments before it is. May return other arguments, where it read them."""
