"""Reads spec/*.yaml: one merged OpenAPI document and the operations in it. Immutable once loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from imp_server.core import ConfigError
from imp_server.core.json_pointer import escaped, unescaped

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
DOCUMENT = "urn:imp:contract"
"""URI of the merged document in the registry of the validators."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    where: str
    """query | path | header."""
    required: bool
    schema: dict[str, Any]
    tail: bool
    """A path parameter that takes the rest of the path, slashes included."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one document; `id` names its handler."""

    id: str
    method: str
    """Upper case."""
    path: str
    document: str
    error_shape: str
    shape_with_header: Mapping[str, str]
    """Header name -> the error shape of requests that carry it."""
    public: bool
    """Needs no key."""
    is_inference: bool
    """Takes a place at the gate."""
    changes_server: bool
    """Takes an admin key, where there is one."""
    is_probe: bool
    """Counts for no rate limit, and is logged only when it fails."""
    parameters: tuple[Parameter, ...]
    body_required: bool
    body_pointers: Mapping[str, str]
    """Media type -> JSON pointer of its request schema in the merged document."""
    response_pointers: Mapping[tuple[str, str], str]
    """(status or "default", media type) -> JSON pointer of its schema."""
    semantic_errors: frozenset[str] = field(default_factory=frozenset)
    field_names: Mapping[str, str] = field(default_factory=dict)
    """What this document calls the fields that other parts of the server know as `messages`, `prompt` ..."""


@dataclass(frozen=True, slots=True)
class Contract:
    """All documents as one."""

    document: dict[str, Any]
    """The merged document, limits filled in."""
    operations: tuple[Operation, ...]
    prefixes: tuple[tuple[str, str], ...]
    """(path prefix, error shape) of unknown paths, longest first."""
    other_shape: str = "openai"
    """Of paths that no prefix names."""

    def shape_of_path(self, path: str) -> str:
        """The error shape of a path that no operation has."""
        return next((shape for prefix, shape in self.prefixes if path.startswith(prefix)), self.other_shape)

    def resolve(self, pointer: str) -> Any:
        """What a JSON pointer into the merged document leads to, references followed."""
        node: Any = self.document
        for part in pointer.split("/")[1:]:
            node = node[int(part)] if isinstance(node, list) else node[unescaped(part)]
        return self.follow(node)

    def follow(self, node: Any) -> Any:
        while isinstance(node, dict) and "$ref" in node and len(node) == 1:
            node = self.resolve(node["$ref"].removeprefix("#"))
        return node


def load(folder: Path, limits: Mapping[str, Any] | None = None) -> Contract:
    """Merges every document of `folder`.

    `limits`: configured values by `section.key`, written where a schema has `x-limit`. Raises ConfigError
    for a document that breaks the conventions of common.yaml.
    """
    documents = {path.stem: _read(path) for path in sorted(folder.glob("*.yaml"))}
    if not documents:
        raise ConfigError(f"no contract in {folder}; reinstall imp")
    merged: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "imp", "version": "1"},
        "paths": {},
        "components": {},
    }
    for name, document in documents.items():
        _merge(merged, name, _local_refs(copy.deepcopy(document), set(documents)))
    _fill_limits(merged, limits or {})
    operations = tuple(_operations(merged, documents))
    prefixes = [
        (str(document["x-error-prefix"]), str(document["x-error-shape"]))
        for document in documents.values()
        if "x-error-prefix" in document
    ]
    return Contract(merged, operations, tuple(sorted(prefixes, key=lambda p: -len(p[0]))))


def _read(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(path.read_bytes(), Loader=loader)
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3.1"):
        raise ConfigError(f"{path.name} isn't an OpenAPI 3.1 document")
    return document


def _local_refs(node: Any, names: set[str]) -> Any:
    """Turns references into other documents into references into the merged one."""
    if isinstance(node, list):
        return [_local_refs(item, names) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: _local_refs(value, names) for key, value in node.items()}
    ref = node.get("$ref")
    if isinstance(ref, str) and not ref.startswith("#"):
        file, _, pointer = ref.partition("#")
        if file.removesuffix(".yaml") not in names:
            raise ConfigError(f"the contract refers to {ref}, which doesn't exist")
        out["$ref"] = f"#{pointer}"
    return out


def _merge(merged: dict[str, Any], name: str, document: dict[str, Any]) -> None:
    for path, item in (document.get("paths") or {}).items():
        if path in merged["paths"]:
            raise ConfigError(f"{name}.yaml: {path} is in another document, too")
        for method, operation in item.items():
            if method in METHODS:
                if "operationId" not in operation:
                    raise ConfigError(f"{name}.yaml: {method.upper()} {path} has no operationId")
                operation.setdefault("security", document.get("security", []))
                operation.setdefault("tags", [name])
                operation["x-document"] = name
        merged["paths"][path] = item
    for kind, entries in (document.get("components") or {}).items():
        place = merged["components"].setdefault(kind, {})
        for key, value in entries.items():
            if key in place:
                raise ConfigError(f"{name}.yaml: component {kind}/{key} is in another document, too")
            place[key] = value


def _fill_limits(node: Any, limits: Mapping[str, Any]) -> None:
    if isinstance(node, list):
        for item in node:
            _fill_limits(item, limits)
    elif isinstance(node, dict):
        rule = node.pop("x-limit", None)
        if isinstance(rule, dict):
            for keyword, key in rule.items():
                if key in limits:
                    node[keyword] = limits[key]
        for value in node.values():
            _fill_limits(value, limits)


def _operations(merged: dict[str, Any], documents: dict[str, dict[str, Any]]) -> Iterator[Operation]:
    seen: set[str] = set()
    whole = Contract(merged, (), ())
    for path, item in merged["paths"].items():
        for method in METHODS:
            if method not in item:
                continue
            operation = item[method]
            if operation["operationId"] in seen:
                raise ConfigError(f"operationId {operation['operationId']} occurs twice in the contract")
            seen.add(operation["operationId"])
            yield _operation(whole, documents[operation["x-document"]], path, method, item, operation)


def _operation(
    whole: Contract, document: dict[str, Any], path: str, method: str, item: dict[str, Any], operation: dict[str, Any]
) -> Operation:
    base = f"/paths/{escaped(path)}/{method}"
    body = operation.get("requestBody") or {}
    responses: dict[tuple[str, str], str] = {}
    for status, response in operation.get("responses", {}).items():
        pointer = f"{base}/responses/{status}"
        if "$ref" in response:
            pointer = response["$ref"].removeprefix("#")
        for media, entry in whole.follow(response).get("content", {}).items():
            if "schema" in entry:
                responses[status, media] = f"{pointer}/content/{escaped(media)}/schema"
        if not whole.follow(response).get("content"):
            responses[status, ""] = ""
    return Operation(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        document=operation["x-document"],
        error_shape=operation.get("x-error-shape", document.get("x-error-shape", "openai")),
        shape_with_header=document.get("x-error-shape-with-header", {}),
        public=operation["security"] == [],
        is_inference=bool(operation.get("x-inference")),
        changes_server=bool(operation.get("x-changes-server")),
        is_probe=operation["security"] == [] or bool(operation.get("x-probe")),
        parameters=tuple(
            _parameter(whole.follow(p)) for p in [*item.get("parameters", []), *operation.get("parameters", [])]
        ),
        body_required=bool(body.get("required")),
        body_pointers={
            media: f"{base}/requestBody/content/{escaped(media)}/schema" for media in body.get("content", {})
        },
        response_pointers=responses,
        semantic_errors=frozenset(operation.get("x-semantic-errors", ())),
        field_names=operation.get("x-field-names", document.get("x-field-names", {})),
    )


def _parameter(entry: dict[str, Any]) -> Parameter:
    return Parameter(
        name=entry["name"],
        where=entry["in"],
        required=bool(entry.get("required")),
        schema=entry.get("schema", {}),
        tail=bool(entry.get("x-path-tail")),
    )
