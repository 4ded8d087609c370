"""Query parameters become what their schemas say."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.api.contract import Parameter
from imp_server.api.parameters import ParameterReader
from imp_server.core import InvalidRequest, MissingParameter


def read(schema: dict[str, Any], raw: bytes, *, required: bool = False) -> Any:
    reader = ParameterReader([Parameter("p", "query", required, schema, False)])
    return reader.query(raw).get("p")


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ({"type": "integer"}, b"p=12", 12),
        ({"type": "integer"}, b"p=1&p=2", 2),
        ({"type": "integer"}, b"q=1", None),
        ({"type": "boolean"}, b"p=true", True),
        ({"type": "boolean"}, b"p=0", False),
        ({"enum": [False]}, b"p=false", False),
        ({"type": "string"}, b"p=", ""),
        ({"type": "string"}, b"p=a%20b+c%C3%A9", "a b cé"),
        ({"type": "array", "items": {"type": "string"}}, b"p=a&p=b", ["a", "b"]),
        ({"type": "array", "items": {"type": "string"}}, b"p[]=a&p%5B%5D=b", ["a", "b"]),
        ({"type": "array", "items": {"type": "integer"}}, b"p=1", [1]),
    ],
)
def test_values(schema: dict[str, Any], raw: bytes, value: Any) -> None:
    assert read(schema, raw) == value


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        ({"type": "integer"}, b"p=1.5"),
        ({"type": "integer"}, b"p="),
        ({"type": "integer"}, b"p=" + b"9" * 5000),
        ({"type": "integer", "maximum": 5}, b"p=6"),
        ({"type": "boolean"}, b"p=maybe"),
        ({"enum": [False]}, b"p=true"),
        ({"type": "array", "items": {"type": "integer"}}, b"p=1&p=x"),
    ],
)
def test_refusals_name_the_parameter(schema: dict[str, Any], raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match='"p"') as caught:
        read(schema, raw)
    assert caught.value.param == "p"


def test_required() -> None:
    with pytest.raises(MissingParameter):
        read({"type": "string"}, b"", required=True)
