"""The sandbox of templates from strangers' model files: what loops, calls and makes something pays before it does.

Behind it stands the worker process (text/worker_jobs.py), for whatever no list of cases foresees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from imp_server.text.template_budget import CALL_STEPS, MAX_PRODUCT, LimitExceeded, budget, counted, text_size
from imp_server.text.template_compare import COMPARED, LOOKED_AT, TESTS, compared, looked_at, pay_for, priced, written
from imp_server.text.template_sizes import FILTER_SIZES, SHALLOW, bound_method, bound_operation

_COUNTED, _JOINED, _SLICED = "imp_counted", "imp_joined", "imp_sliced"
_CHANGING = ("append", "pop")
_LEFT_OUT = ("urlize", "xmlattr", "pprint")
"""Filters for web pages."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with a price on whatever may be repeated or grow. Compiling a template computes nothing."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=_written, **options)
        self.globals.pop("lipsum")
        for name in _LEFT_OUT:
            del self.filters[name]
        for name in list(self.filters):
            self.set_filter(name, self.filters[name])
        self.filters[_COUNTED] = pass_context(lambda _, items: counted(items))
        self.filters[_JOINED] = pass_context(lambda _, parts: _joined(parts))
        self.filters[_SLICED] = pass_context(lambda _, made: _charged(made))
        self.filters[COMPARED] = pass_context(lambda _, left, right, op: compared(op, left, right))
        self.filters[LOOKED_AT] = pass_context(lambda _, value: _looked_at(value))
        tests: dict[str, Any] = self.tests
        tests |= {name: partial(compared, op) for name, op in TESTS.items()}
        tests |= {name: written(tests[name]) for name in ("lower", "upper")}

    concat = staticmethod(lambda pieces: _joined(pieces))

    def set_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = _bounded_filter(name, function)

    def bounded(self, source: str) -> Template:
        """Raises TemplateSyntaxError, and what Python raises for code that is nested too deeply."""
        tree = _Bounded().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """What the sandbox allows, and that a template adds to a list of its own, or takes from it, as some do."""
        if type(obj) is list and attr in _CHANGING:
            given = budget().given
            return given is not None and id(obj) not in given
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        bound_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget().step(CALL_STEPS)
        if __obj is dict or isinstance(getattr(__obj, "__self__", __obj), LoopContext):
            pay_for(args)
        args = tuple(_paid(value) for value in args)
        bound_method(__obj, args, kwargs)
        return _charged(super().call(__context, __obj, *args, **kwargs))


class _Bounded(NodeTransformer):
    """Puts a filter of ours around what the environment isn't asked about."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _COUNTED)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filtered(node, _SLICED)
        node.arg = looked_at(node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return priced(node)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = looked_at(node.key)
        return node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _looked_at(value: Any) -> Any:
    pay_for(value)
    return value


def _written(value: Any) -> Any:
    """What is printed."""
    if not isinstance(value, str):
        budget().make(text_size(value))
    return value


def _joined(pieces: Iterable[Any]) -> str:
    """The texts of all pieces, whose sizes are known before they are put together."""
    left = budget()
    found, size = [], 0
    for piece in pieces:
        size += text_size(piece)
        if size > MAX_PRODUCT:
            raise LimitExceeded(f"it writes more than {MAX_PRODUCT} characters")
        found.append(str(piece))
    left.make(size)
    return "".join(found)


def _charged(made: Any) -> Any:
    if isinstance(made, str | bytes | list | tuple | dict):
        budget().make(len(made))
    return _paid(made)


def _paid(value: Any) -> Any:
    """An iterator whose items cost a step each; anything else as it is."""
    return counted(value) if isinstance(value, Iterator) and not isinstance(value, LoopContext) else value


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A context is passed to each, so that none is computed at compile time."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", "")
    sizes = FILTER_SIZES.get(name)

    @pass_context
    def bounded(context: Context, *args: Any, **kwargs: Any) -> Any:
        left = budget()
        left.step(CALL_STEPS)
        args = tuple(_paid(value) for value in args)
        if args and isinstance(args[0], Sized) and not isinstance(args[0], str):
            left.step(len(args[0]))
            if name not in SHALLOW:
                left.make(text_size(args[0]))
        if len(args) > 1 or kwargs:
            pay_for((args[1:], kwargs))
        if sizes is not None:
            args, kwargs = sizes(context.environment, *args, **kwargs) or (args, kwargs)
        if wants == "context":
            args = (context, *args)
        elif wants == "eval_context":
            args = (context.eval_ctx, *args)
        elif wants == "environment":
            args = (context.environment, *args)
        return _charged(function(*args, **kwargs))

    return bounded
