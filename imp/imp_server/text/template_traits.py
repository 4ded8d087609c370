"""What a chat template can do, found by rendering small conversations with it once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imp_server.core import TemplateRefused, TemplateTooCostly
from imp_server.text.template import Template

_NEEDLE = "Zq7needle"
_HAS_DEFAULT = re.compile(r"enable_thinking\s+is\s|enable_thinking\s*\|\s*d(?:efault)?\b")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template can do and what it wants; the defaults are the most capable one."""

    system_role: bool = True
    """False: a system message must be folded into the user message that follows it."""
    late_system: bool = True
    """The same for system messages that aren't the first message."""
    typed_content: bool = False
    """Content must be a list of parts."""
    arguments_as_text: bool = False
    """Arguments of tool calls must be JSON text, not a value."""
    cut_arguments: bool = True
    """Arguments that are no JSON, of a call that was cut, may be given as their text."""
    null_content: bool = False
    """An assistant message that only calls tools must have the content none, not the empty text."""
    tools: bool = False
    """The template shows the tools itself."""
    tool_role: bool = True
    """The template shows the results of tools."""
    tool_calls: bool = True
    """The template shows the calls that an assistant message made."""
    short_ids: bool = False
    """Ids of calls must have nine letters and digits."""
    reasoning_keys: tuple[str, ...] = ("reasoning_content",)
    wants_thinking_said: bool = False
    """It looks at `enable_thinking` without asking whether that is defined: silence would turn thinking off by chance,
    where its author gave it no default."""


def template_caps(traits: TemplateTraits) -> dict[str, bool]:
    """llama.cpp's `chat_template_caps`. What a template lacks is made up for (fold_systems.py, tools/untaught.py)."""
    return {
        "supports_string_content": not traits.typed_content,
        "supports_typed_content": traits.typed_content,
        "supports_tools": traits.tools,
        "supports_tool_calls": traits.tool_calls,
        "supports_parallel_tool_calls": traits.tool_calls,
        "supports_system_role": traits.system_role,
        "requires_object_arguments": not traits.arguments_as_text,
    }


def traits_of(template: Template) -> TemplateTraits:
    """Never raises: what a template refuses, it can't do. One that takes too long is asked no further."""
    try:
        return _found_by_rendering(template)
    except TemplateTooCostly:
        return TemplateTraits()


def _found_by_rendering(template: Template) -> TemplateTraits:
    user = {"role": "user", "content": _NEEDLE}
    typed = not _shows(template, [user]) and _shows(template, [{"role": "user", "content": _parts(_NEEDLE)}])

    def content(text: str) -> Any:
        return _parts(text) if typed else text

    hello = {"role": "user", "content": content("hello")}
    system = {"role": "system", "content": content(_NEEDLE)}
    other, answer = {"role": "system", "content": content("be kind")}, {"role": "assistant", "content": content("hi")}
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": _NEEDLE, "description": "d", "parameters": schema}}
    as_value, as_text = _call({_NEEDLE: "v"}), _call('{"' + _NEEDLE + '": "v"}')
    result = {"role": "tool", "content": content(_NEEDLE), "tool_call_id": "abcdefghi", "name": "f"}
    answered = {**result, "content": content("r")}

    def shows_call(call: Mapping[str, Any]) -> bool:
        """Some templates show a call only once its result follows."""
        return _shows(template, [hello, call]) or _shows(template, [hello, call, answered])

    keys = tuple(k for k in _REASONING_KEYS if re.search(rf"[.'\"]{k}\b", template.source))
    return TemplateTraits(
        system_role=_shows(template, [system, hello]),
        late_system=_shows(template, [hello, answer, system, hello]) and _shows(template, [other, system, hello]),
        typed_content=typed,
        cut_arguments=shows_call(_call('{"' + _NEEDLE)),
        arguments_as_text=_wants_text(template, [hello, as_value], [hello, as_text]),
        null_content=not _renders(template, [hello, _call({"x": "v"})])
        and _renders(template, [hello, _call({"x": "v"}, content=None)]),
        tools=_shows(template, [hello], tools=[tool]),
        tool_role=_shows(template, [hello, _call({"x": "v"}), result]),
        tool_calls=shows_call(as_value) or shows_call(as_text),
        short_ids=_accepts_id(template, hello, "abcdefghi") and not _accepts_id(template, hello, "call_0123456789"),
        reasoning_keys=keys or _REASONING_KEYS[:1],
        wants_thinking_said="enable_thinking" in template.source and not _HAS_DEFAULT.search(template.source),
    )


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _call(arguments: Any, content: str | None = "", call_id: str = "abcdefghi") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _wants_text(
    template: Template, as_value: Sequence[Mapping[str, Any]], as_text: Sequence[Mapping[str, Any]]
) -> bool:
    value, text = _render(template, as_value), _render(template, as_text)
    if text is None or _NEEDLE not in text:
        return False
    if value is None or _NEEDLE not in value:
        return True
    # A value printed without `tojson` shows Python's quotes; text put through `tojson` is quoted twice.
    return f"'{_NEEDLE}'" in value and f'\\"{_NEEDLE}\\"' not in text


def _shows(template: Template, messages: Sequence[Mapping[str, Any]], **more: Any) -> bool:
    return _NEEDLE in (_render(template, messages, **more) or "")


def _accepts_id(template: Template, hello: Mapping[str, Any], call_id: str) -> bool:
    calls = [_call({"x": "v"}, content, call_id) for content in ("", None)]
    return any(_render(template, [hello, call]) is not None for call in calls)


def _renders(template: Template, messages: Sequence[Mapping[str, Any]]) -> bool:
    rendered = _render(template, messages)
    return rendered is not None and "None" not in rendered


def _render(template: Template, messages: Sequence[Mapping[str, Any]], **more: Any) -> str | None:
    try:
        return template.render(messages, **more)
    except TemplateTooCostly:
        raise
    except TemplateRefused:
        return None
