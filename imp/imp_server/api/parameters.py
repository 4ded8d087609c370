"""Query and path parameters: text made into what their schemas say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import jsonschema_rs

from imp_server.api.contract import Parameter
from imp_server.core import InvalidRequest, MissingParameter

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class ParameterReader:
    """The parameters of one operation. Immutable. Parameters that the contract doesn't name are ignored."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._query = [(p, _validator(p)) for p in parameters if p.where == "query"]
        self._path = [(p, _validator(p)) for p in parameters if p.where == "path"]
        self._headers = [(p, _validator(p)) for p in parameters if p.where == "header"]

    def query(self, raw: bytes) -> dict[str, Any]:
        """Arrays come as repeated parameters, with or without brackets behind the name."""
        sent: dict[str, list[str]] = {}
        for name, text in parse_qsl(raw.decode("utf-8", "replace"), keep_blank_values=True) if raw else ():
            sent.setdefault(name.removesuffix("[]"), []).append(text)
        return {p.name: value for p, v in self._query if (value := _read(p, v, sent.get(p.name))) is not None}

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Lower-case names."""
        for parameter, validator in self._headers:
            _read(parameter, validator, _listed(headers.get(parameter.name.lower())))

    def path(self, values: Mapping[str, str | None]) -> dict[str, str]:
        return {p.name: str(_read(p, v, _listed(values.get(p.name)))) for p, v in self._path}


def _validator(parameter: Parameter) -> Any:
    return jsonschema_rs.Draft202012Validator(parameter.schema)


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [text]


def _read(parameter: Parameter, validator: Any, texts: list[str] | None) -> Any:
    if texts is None:
        if parameter.required:
            raise MissingParameter(f'"{parameter.name}" is missing', param=parameter.name)
        return None
    if parameter.schema.get("type") == "array":
        kinds = _kinds(parameter.schema.get("items", {}))
        value: Any = [_convert(kinds, text) for text in texts]
    else:
        value = _convert(_kinds(parameter.schema), texts[-1])
    if not validator.is_valid(value):
        error = next(iter(validator.iter_errors(value)))
        raise InvalidRequest(f'"{parameter.name}" isn\'t valid: {error.message[:200]}', param=parameter.name)
    return value


def _kinds(schema: dict[str, Any]) -> set[str]:
    """JSON types a schema names, by `type` or by the values of `enum`."""
    kind = schema.get("type", [])
    kinds = {kind} if isinstance(kind, str) else set(kind)
    return kinds | {"boolean" for value in schema.get("enum", ()) if isinstance(value, bool)}


def _convert(kinds: set[str], text: str) -> Any:
    """The value if `text` spells one of `kinds`, else `text`, which its schema then refuses."""
    if "integer" in kinds and len(text) < 40 and text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    if "boolean" in kinds:
        return _BOOLEANS.get(text.lower(), text)
    return text
