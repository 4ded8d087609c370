"""The model's chat template in a sandboxed Jinja, with what Hugging Face's templates expect to find there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from imp_server.core import InvalidModel, TemplateRefused, TemplateTooCostly
from imp_server.text.template_budget import (
    MAX_STEPS,
    STEPS_PER_MESSAGE,
    LimitExceeded,
    RenderingBudget,
    budget,
    lists_in,
    spending,
    text_size,
)
from imp_server.text.template_limits import BoundedEnvironment

MAX_SOURCE = 1 << 20
"""Characters of a template."""


_CHANGES = re.compile(r"append|pop")


class _Refusal(Exception):
    """What `raise_exception` raises inside a template."""


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks training targets; here it is just its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


class Template(Protocol):
    """A chat template, wherever it runs."""

    @property
    def source(self) -> str: ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Raises TemplateRefused."""
        ...


class ChatTemplate:
    """One compiled template. Thread-safe: rendering shares nothing."""

    def __init__(
        self, source: str, variables: Mapping[str, Any] | None = None, *, now: Callable[[], datetime] = datetime.now
    ) -> None:
        """`variables`: bos_token and the like. Raises InvalidModel if the template can't be parsed."""
        self.source = source
        self._variables = dict(variables or {})
        environment = BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
        )
        environment.set_filter("tojson", _tojson)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        if len(source) > MAX_SOURCE:
            raise InvalidModel(f"the chat template has more than {MAX_SOURCE} characters")
        try:
            with spending(RenderingBudget()):
                self._template = environment.bounded(source)
        except TemplateSyntaxError as error:
            raise InvalidModel(f"the chat template has a fault in line {error.lineno}: {error.message}") from None
        except (SyntaxError, RecursionError, MemoryError, ValueError, OverflowError, LimitExceeded) as error:
            raise InvalidModel(f"the chat template can't be compiled: {str(error) or type(error).__name__}") from None
        self._now = now
        self._changes_lists = bool(_CHANGES.search(source))
        self._no_tools: list[Any] | None = None
        self._no_tools = self._spelled_without_tools()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Raises TemplateRefused with the template's own words, or with what went wrong in it."""
        variables = {
            **self._variables,
            **self._said_by_servers(tools),
            **(extra or {}),
            "messages": messages,
            "tools": tools or self._no_tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            given = lists_in(variables) if self._changes_lists else None
            with spending(RenderingBudget(MAX_STEPS + STEPS_PER_MESSAGE * len(messages), given)):
                return self._template.render(**variables)
        except _Refusal as refusal:
            raise TemplateRefused(
                f"the model's chat template refuses this conversation: {refusal}", param="messages"
            ) from None
        except LimitExceeded as error:
            raise TemplateTooCostly(f"the model's chat template does too much: {error}", param="messages") from None
        except (
            TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
            MemoryError,
        ) as e:
            raise TemplateRefused(
                f"the model's chat template can't render this conversation: {e}", param="messages"
            ) from None

    def _said_by_servers(self, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """Variables that some templates expect besides transformers' own, with the values that other servers give."""
        now = self._now()
        return {
            "date_string": now.strftime("%d %b %Y"),
            "datetime": now.strftime("%b %d %Y"),
            "functions": _tojson(list(tools), indent=2) if tools and "functions" in self.source else "",
        }

    def _spelled_without_tools(self) -> list[Any] | None:
        """None, as transformers says it, or the empty list for a template that goes through `tools` unasked."""
        if "tools" not in self.source:
            return None
        hello = [{"role": "user", "content": "hello"}]
        try:
            self.render(hello)
        except TemplateRefused:
            self._no_tools = []
            try:
                self.render(hello)
            except TemplateRefused:
                return None
            return []
        return None


def _raise_exception(message: Any) -> None:
    budget().make(text_size(message))
    raise _Refusal(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes < > & for HTML; models were trained on plain JSON.
    if isinstance(value, jinja2.Undefined):
        value = None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
