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

    def query(self, raw: bytes) -> dict[str, Any]:
        sent = dict(parse_qsl(raw.decode("utf-8", "replace"), keep_blank_values=True)) if raw else {}
        return {p.name: value for p, v in self._query if (value := _read(p, v, sent.get(p.name))) is not None}

    def path(self, values: Mapping[str, str | None]) -> dict[str, str]:
        return {p.name: str(_read(p, v, values.get(p.name))) for p, v in self._path}


def _validator(parameter: Parameter) -> Any:
    return jsonschema_rs.Draft202012Validator(parameter.schema)


def _read(parameter: Parameter, validator: Any, text: str | None) -> Any:
    if text is None:
        if parameter.required:
            raise MissingParameter(f'"{parameter.name}" is missing', param=parameter.name)
        return None
    value: Any = _convert(parameter.schema.get("type"), text)
    if not validator.is_valid(value):
        error = next(iter(validator.iter_errors(value)))
        raise InvalidRequest(f'"{parameter.name}" isn\'t valid: {error.message[:200]}', param=parameter.name)
    return value


def _convert(kind: Any, text: str) -> Any:
    """The value if `text` spells one of `kind`, else `text`, which its schema then refuses."""
    kinds = kind if isinstance(kind, list) else [kind]
    if "integer" in kinds and len(text) < 40 and text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    if "boolean" in kinds:
        return _BOOLEANS.get(text.lower(), text)
    return text
