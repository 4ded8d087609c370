"""Bounds on what a template from a stranger's model file may do: steps of its loops, size of its products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 2_000_000
"""Loop steps per rendering."""
MAX_PRODUCT = 10_000_000
"""Items of a repeated text or list; bits of a number."""
_STEPS = "imp_loop_steps"
_FILTER = "imp_counted"


class LimitExceeded(Exception):
    """The template does too much."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with a filter around the iterable of every loop and a check before every product."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters[_FILTER] = _counted

    def bounded(self, source: str) -> Template:
        """Raises TemplateSyntaxError."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _FILTER, [], [], None, None, lineno=loop.lineno)
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _size(left, operator, right) > MAX_PRODUCT:
            raise LimitExceeded("it makes a text or number of more than 10 million items")
        return super().call_binop(context, operator, left, right)


def step_budget() -> dict[str, list[int]]:
    """The variable that one rendering counts its steps in."""
    return {_STEPS: [MAX_STEPS]}


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    left: Any = context.resolve(_STEPS)
    for item in items:
        left[0] -= 1
        if left[0] < 0:
            raise LimitExceeded(f"its loops take more than {MAX_STEPS} steps")
        yield item


def _size(left: Any, operator: str, right: Any) -> int:
    for text, times in ((left, right), (right, left)):
        if operator == "*" and isinstance(text, str | list | tuple) and isinstance(times, int):
            return len(text) * max(times, 0)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        return bits * max(right, 0) if operator == "**" else bits + right.bit_length()
    return 0
