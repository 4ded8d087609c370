"""Does a value conform to a schema of the contract documents in spec/?"""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs
import yaml

from imp_server.conformance.boxes import MISSING, unbox
from imp_server.core import ConfigError
from imp_server.resources import data_folder

_BASE = "https://contract.invalid/"


@cache
def _document(name: str) -> dict[str, Any]:
    path = data_folder("spec") / name
    if not path.is_file():
        raise ConfigError(f"no contract document {name}")
    document: dict[str, Any] = yaml.load(path.read_text(), yaml.CSafeLoader)
    return document


def _retrieve(uri: str) -> Any:
    return _document(uri.removeprefix(_BASE).partition("#")[0])


@cache
def _validator(document: str, schema: str) -> Any:
    if schema not in _document(f"{document}.yaml").get("components", {}).get("schemas", {}):
        raise ConfigError(f"{document}.yaml has no schema {schema}")
    reference = {"$ref": f"{_BASE}{document}.yaml#/components/schemas/{schema}"}
    return jsonschema_rs.Draft202012Validator(reference, retriever=_retrieve)


def conforms(document: str, schema: str, value: Any) -> bool:
    """`value` (a reply, an event, a part of one) is valid against a component schema of spec/<document>.yaml."""
    return value is not MISSING and bool(_validator(document, schema).is_valid(unbox(value)))
