"""Calls as each family's chat template shows them in a conversation: written by hand, not by our grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Tag = Callable[[str], bytes]
"""A tag's marked bytes: as text, or as a special token."""


def dumps(value: Any, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **more)


def own_way(form: str, tag: Tag, name: str, arguments: Mapping[str, Any], ascii_only: bool = False) -> bytes:
    """One call. `ascii_only`: JSON escapes all other characters."""

    def js(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii_only)

    def text_or_json(value: Any) -> str:
        return value if isinstance(value, str) else js(value)

    return _WAYS[form](tag, name, arguments, js, text_or_json)


Spell = Callable[[Any], str]


def _join(*parts: bytes | str) -> bytes:
    return b"".join(p.encode() if isinstance(p, str) else p for p in parts)


def _hermes(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    return _join(tag("<tool_call>"), f'\n{{"name": {js(name)}, "arguments": {js(args)}}}\n', tag("</tool_call>"))


def _qwen_xml(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    """Scalars go through Jinja's `string`, so they look like Python's."""

    def value(v: Any) -> str:
        return js(v) if isinstance(v, dict | list) else str(v)

    pairs = "".join(f"<parameter={k}>\n{value(v)}\n</parameter>\n" for k, v in args.items())
    return _join(tag("<tool_call>"), f"\n<function={name}>\n{pairs}</function>\n", tag("</tool_call>"))


def _seed(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    pairs = "".join(f"<parameter={k}>{raw(v)}</parameter>\n" for k, v in args.items())
    return _join(tag("<seed:tool_call>"), f"\n<function={name}>\n{pairs}</function>\n", tag("</seed:tool_call>"))


def _minimax(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    pairs = "".join(f'<parameter name="{k}">{raw(v)}</parameter>\n' for k, v in args.items())
    body = f'\n<invoke name="{name}">\n{pairs}</invoke>\n'
    return _join(tag("<minimax:tool_call>"), body, tag("</minimax:tool_call>"))


def _glm(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    parts: list[bytes | str] = [tag("<tool_call>"), name, "\n"]
    for key, value in args.items():
        parts += [tag("<arg_key>"), key, tag("</arg_key>"), "\n"]
        parts += [tag("<arg_value>"), raw(value), tag("</arg_value>"), "\n"]
    return _join(*parts, tag("</tool_call>"))


def _gemma(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    quote = tag('<|"|>')

    def value(v: Any) -> bytes:
        if isinstance(v, str):
            return _join(quote, v, quote)
        if isinstance(v, list):
            return b"[" + b",".join(value(item) for item in v) + b"]"
        if isinstance(v, dict):
            return b"{" + b",".join(_join(quote, k, quote, b":", value(item)) for k, item in v.items()) + b"}"
        return _join(str(v).lower() if isinstance(v, bool) else str(v))

    pairs = b",".join(_join(k, ":", value(v)) for k, v in args.items())
    return _join(tag("<|tool_call>"), "call:", name, "{", pairs, "}", tag("<tool_call|>"))


def _deepseek(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    head, tail = tag("<｜tool▁calls▁begin｜>"), tag("<｜tool▁calls▁end｜>")
    begin, sep, end = (tag(f"<｜tool▁{what}｜>") for what in ("call▁begin", "sep", "call▁end"))
    return _join(head, begin, name, sep, js(args), end, tail)


def _deepseek_fenced(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    head, tail = tag("<｜tool▁calls▁begin｜>"), tag("<｜tool▁calls▁end｜>")
    begin, sep, end = (tag(f"<｜tool▁{what}｜>") for what in ("call▁begin", "sep", "call▁end"))
    return _join(head, begin, "function", sep, name, "\n```json\n", js(args), "\n```", end, tail)


def _cohere(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    call = f'    {{"tool_call_id": "0", "tool_name": {js(name)}, "parameters": {js(args)}}}'
    return _join(tag("<|START_ACTION|>"), f"[\n{call}\n]", tag("<|END_ACTION|>"))


def _kimi(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    begin, body, end = (tag(f"<|tool_call_{what}|>") for what in ("begin", "argument_begin", "end"))
    section, section_end = tag("<|tool_calls_section_begin|>"), tag("<|tool_calls_section_end|>")
    return _join(section, begin, f"functions.{name}:0", body, js(args), end, section_end)


def _harmony(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    head = (tag("<|channel|>"), f"commentary to=functions.{name} ", tag("<|constrain|>"), "json")
    return _join(*head, tag("<|message|>"), js(args))


def _minicpm(tag: Tag, name: str, args: Mapping[str, Any], js: Spell, raw: Spell) -> bytes:
    """A text that isn't plain is wrapped; scalars look like Python's."""

    def value(v: Any) -> str:
        if isinstance(v, str):
            return f"<![CDATA[{v}]]>" if re.search("[<&\n]", v) else v
        return js(v) if isinstance(v, dict | list) else str(v)

    parts: list[bytes | str] = [tag("<function"), f' name="{name}">']
    for key, v in args.items():
        parts += [tag("<param"), f' name="{key}">', value(v), tag("</param>")]
    return _join(*parts, tag("</function>"))


_WAYS: dict[str, Callable[[Tag, str, Mapping[str, Any], Spell, Spell], bytes]] = {
    "hermes": _hermes,
    "qwen_xml": _qwen_xml,
    "llama3_json": lambda tag, n, a, js, raw: _join(f'{{"name": {js(n)}, "parameters": {js(a)}}}'),
    "llama3_function": lambda tag, n, a, js, raw: _join(f"<function={n}>{js(a)}</function>"),
    "mistral": lambda tag, n, a, js, raw: _join(
        tag("[TOOL_CALLS]"), f'[{{"name": {js(n)}, "arguments": {js(a)}, "id": "abcdefghi"}}]'
    ),
    "mistral, newer": lambda tag, n, a, js, raw: _join(tag("[TOOL_CALLS]"), n, tag("[ARGS]"), js(a)),
    "gemma": _gemma,
    "deepseek": _deepseek,
    "deepseek, fenced": _deepseek_fenced,
    "glm": _glm,
    "cohere": _cohere,
    "phi": lambda tag, n, a, js, raw: _join(
        tag("<|tool_call|>"), f'[{{"name": {js(n)}, "arguments": {js(a)}}}]', tag("<|/tool_call|>")
    ),
    "granite": lambda tag, n, a, js, raw: _join(tag("<|tool_call|>"), f'[{{"name": {js(n)}, "arguments": {js(a)}}}]'),
    "harmony": _harmony,
    "kimi": _kimi,
    "seed": _seed,
    "minimax": _minimax,
    "minicpm": _minicpm,
    "jamba": lambda tag, n, a, js, raw: _join(
        tag("<tool_calls>"), f'[{{"name": {js(n)}, "arguments": {js(a)}}}]', tag("</tool_calls>")
    ),
}
WAYS = sorted(_WAYS)

_PARAMETER_ENDS = re.compile(r"</parameter>\n{1,2}(<parameter|</function>|</invoke>)")
_FUNCTION_ENDS = re.compile(r"</(function|invoke)>\n{0,2}</(seed:|minimax:)?tool_call>")


def can_be_told(form: str, text: str, as_tokens: bool) -> bool:
    """Whether the notation can write this text as a string parameter: raw text can't hold what ends it."""
    if form in ("qwen_xml", "seed", "minimax"):
        return not _PARAMETER_ENDS.search(text) and not _FUNCTION_ENDS.search(text)
    if form == "glm":
        return as_tokens or not ("</arg_value>" in text or "</tool_call>" in text)
    if form == "minicpm":
        is_plain = not re.search("[<&\n]", text)
        like_json = re.match(r'[ \t\r]*(?:"|[{\[].*")', text)
        return not (is_plain and like_json) and (as_tokens or "]]></param>" not in text)
    if form == "gemma":
        return as_tokens or '<|"|>' not in text
    return True
