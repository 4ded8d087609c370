"""What binds the answer of a request, by any of its names: the dialect's own, vLLM's, llama.cpp's and imp's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from imp_server.core import GrammarRefused, InvalidRequest, ResponseFormat

Make = Callable[[Any, str], ResponseFormat]


def response_format_of(body: Mapping[str, Any], own: ResponseFormat | None = None) -> ResponseFormat:
    """The one constraint of the request. Saying the same twice is fine.

    `own`: what the dialect's own field asks for, where that isn't `response_format`.
    Raises InvalidRequest if two fields ask for different things, GrammarRefused for a schema that isn't JSON.
    """
    found = [wanted for wanted in _asked(body, own) if wanted.kind != "text"]
    if not found:
        return ResponseFormat()
    first = found[0]
    for other in found[1:]:
        if _without_name(other) != _without_name(first):
            raise InvalidRequest(
                f'"{first.param}" and "{other.param}" ask for different answers; send one of them',
                param=other.param,
                code="unsupported_value",
            )
    return first


def _asked(body: Mapping[str, Any], own: ResponseFormat | None) -> Iterator[ResponseFormat]:
    if own is not None:
        yield own
    elif wanted := body.get("response_format"):
        yield from _response_formats(wanted)
    for name, make in (_ALIASES if own is None else _GUIDED).items():
        if (value := body.get(name)) not in (None, ""):
            yield make(value, name)
    for name, value in (body.get("structured_outputs") or {}).items():
        if name in _STRUCTURED and value not in (None, "", False):
            yield _STRUCTURED[name](value, f"structured_outputs.{name}")


def _without_name(wanted: ResponseFormat) -> ResponseFormat:
    return msgspec.structs.replace(wanted, name="", param="")


def _response_formats(wanted: Mapping[str, Any]) -> Iterator[ResponseFormat]:
    kind = wanted["type"]
    if kind == "json_schema":
        inner = wanted["json_schema"]
        param = "response_format.json_schema.schema"
        yield ResponseFormat("json_schema", schema=inner["schema"], name=inner.get("name", ""), param=param)
    elif kind == "regex":
        key = "regex" if "regex" in wanted else "pattern"
        yield ResponseFormat("regex", text=wanted[key], param=f"response_format.{key}")
    elif kind == "grammar":
        key = "grammar" if "grammar" in wanted else "gbnf"
        yield ResponseFormat("grammar", text=wanted[key], param=f"response_format.{key}")
    elif kind == "json_object" and (keys := [key for key in _OBJECT_SCHEMAS if wanted.get(key)]):
        for key in keys:
            yield ResponseFormat("json_schema", schema=wanted[key], param=f"response_format.{key}")
    else:
        yield ResponseFormat(kind)


_OBJECT_SCHEMAS = ("schema", "value")
"""llama.cpp's way, and what huggingface_hub makes of a json_schema."""


def _schema(value: Any, param: str) -> ResponseFormat:
    """vLLM takes the schema as JSON text, too; the empty one is any object, as in llama.cpp."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise GrammarRefused(f'"{param}" isn\'t JSON: {error}', param=param) from None
        if not isinstance(value, dict):
            raise GrammarRefused(f'"{param}" isn\'t a JSON Schema object', param=param)
    return ResponseFormat("json_schema", schema=value or {"type": "object"}, param=param)


def _regex(value: str, param: str) -> ResponseFormat:
    return ResponseFormat("regex", text=value, param=param)


def _grammar(value: str, param: str) -> ResponseFormat:
    return ResponseFormat("grammar", text=value, param=param)


def _lark_or_gbnf(value: str, param: str) -> ResponseFormat:
    """vLLM takes both languages in one field; a rule of GBNF can't do without its sign."""
    return _grammar(value, param) if "::=" in value else ResponseFormat("lark", text=value, param=param)


def _choice(value: list[str], param: str) -> ResponseFormat:
    return ResponseFormat("choice", choices=tuple(value), param=param)


def _object(_value: bool, param: str) -> ResponseFormat:
    return ResponseFormat("json_object", param=param)


_GUIDED: dict[str, Make] = {
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark_or_gbnf,
}
"""vLLM's; its clients send them to every route."""
_ALIASES: dict[str, Make] = {
    **_GUIDED,
    "json_schema": _schema,
    "grammar": _grammar,
    "regex": _regex,
    "ebnf": _grammar,
}
"""llama.cpp's and SGLang's, too."""
ANSWER_FIELDS = (*_ALIASES, "structured_outputs")
"""What binds an answer, beside the dialect's own field."""
_STRUCTURED: dict[str, Make] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark_or_gbnf,
    "json_object": _object,
}
