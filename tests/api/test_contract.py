"""The documents keep the conventions of spec/common.yaml, and documents and handlers can't drift apart."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import imp_server
import jsonschema_rs
import pytest
from imp_server import core
from imp_server.api import contract as contracts
from imp_server.api.binding import bind, find_handlers
from imp_server.api.contract import Contract, load
from imp_server.api.errors import shape_module
from imp_server.core import ConfigError, ImpError
from imp_server.dialects.docs_page import front_page, page
from imp_server.resources import data_folder

LOADED = load(data_folder("spec"))


def test_every_operation_has_its_handler() -> None:
    assert len(bind(LOADED, find_handlers())) == len(LOADED.operations)


def test_a_lone_operation_or_handler_stops_the_start() -> None:
    handlers = find_handlers()
    some = next(iter(handlers))
    with pytest.raises(ConfigError, match=f"operation {some} has no handler"):
        bind(LOADED, {k: v for k, v in handlers.items() if k != some})
    with pytest.raises(ConfigError, match=r"handler nobody\.asked has no operation"):
        bind(LOADED, {**handlers, "nobody.asked": handlers[some]})


def test_operation_ids_name_module_and_function() -> None:
    handlers = find_handlers()
    for operation in LOADED.operations:
        module, _, function = operation.id.partition(".")
        handler = handlers[operation.id]
        place = handler.__module__.removeprefix("imp_server.dialects.").removesuffix(".handlers")
        assert (place.replace(".", "_"), handler.__name__) == (module, function), operation.id


def optional_properties(schema: Any, path: str, seen: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every optional property a request schema declares, through references and unions."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        if schema["$ref"] not in seen:
            seen.add(schema["$ref"])
            yield from optional_properties(LOADED.resolve(schema["$ref"][1:]), schema["$ref"], seen)
        return
    for name, sub in schema.get("properties", {}).items():
        # A `type` says which branch of a union is meant; null there would mean none.
        if name not in schema.get("required", ()) and name != "type":
            yield f"{path}.{name}", sub
        yield from optional_properties(sub, f"{path}.{name}", seen)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for i, branch in enumerate(schema.get(keyword, ())):
            required = set(schema.get("required", ())) | set(branch.get("required", ()))
            inner = {**branch, "required": [*required]} if "properties" in branch else branch
            yield from optional_properties(inner, f"{path}/{keyword}{i}", seen)
    for keyword in ("items", "additionalProperties"):
        yield from optional_properties(schema.get(keyword), f"{path}[]", seen)


def test_optional_request_properties_admit_null() -> None:
    registry = jsonschema_rs.Registry([(contracts.DOCUMENT, LOADED.document)], draft=jsonschema_rs.Draft202012)
    refused = []
    for operation in LOADED.operations:
        for pointer in operation.body_pointers.values():
            for path, schema in optional_properties({"$ref": f"#{pointer}"}, operation.id, set()):
                wrapped = _absolute(schema)
                if not jsonschema_rs.Draft202012Validator(wrapped, registry=registry).is_valid(None):
                    refused.append(path)
    assert not refused


def _absolute(node: Any) -> Any:
    if isinstance(node, list):
        return [_absolute(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: _absolute(value) for key, value in node.items()}
    if isinstance(out.get("$ref"), str):
        out["$ref"] = contracts.DOCUMENT + out["$ref"]
    return out


def test_every_error_code_is_in_the_enum() -> None:
    documented = set(LOADED.document["components"]["schemas"]["ErrorCode"]["enum"])

    def tree(kind: type[ImpError]) -> Iterator[type[ImpError]]:
        yield kind
        for sub in kind.__subclasses__():
            yield from tree(sub)

    for info in pkgutil.iter_modules(imp_server.__path__):
        importlib.import_module(f"imp_server.{info.name}")
    on_the_wire = {kind.default_code for kind in tree(ImpError) if not issubclass(kind, core.UserFault)}
    assert on_the_wire <= documented


@pytest.mark.parametrize("operation", LOADED.operations, ids=lambda o: o.id)
def test_operations_document_their_errors(operation: contracts.Operation) -> None:
    statuses = {status for status, _ in operation.response_pointers}
    wanted = {"405", "500"}
    if not operation.public:
        wanted |= {"401"}
    if operation.body_required:
        wanted |= {"400", "404", "413", "415"}
    if "text/event-stream" in {media for _, media in operation.response_pointers}:
        wanted |= {"429", "503"}
    assert wanted <= statuses
    if operation.error_shape != "tgi":
        assert "422" not in statuses
    assert callable(shape_module(operation.error_shape).error_body)


def test_semantic_errors_are_known_codes() -> None:
    documented = set(LOADED.document["components"]["schemas"]["ErrorCode"]["enum"])
    for operation in LOADED.operations:
        assert operation.semantic_errors <= documented
        assert "invalid_value" not in operation.semantic_errors


def test_references_resolve() -> None:
    def refs(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                yield node["$ref"]
            for value in node.values():
                yield from refs(value)
        elif isinstance(node, list):
            for item in node:
                yield from refs(item)

    found = list(refs(LOADED.document))
    assert found
    for ref in found:
        assert ref.startswith("#/")
        LOADED.resolve(ref[1:])


def test_limits_are_written_in() -> None:
    document = load(data_folder("spec"), {"server.max_n": 3, "server.max_messages": 7}).document
    request = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert request["n"]["maximum"] == 3
    assert request["messages"]["maxItems"] == 7
    assert "x-limit" not in str(document)


MINIMAL = """
openapi: 3.1.0
info: {title: t, version: "1"}
security: [{bearer: []}]
paths:
  /a:
    get:
      operationId: %s
      responses: {"200": {description: fine}}
components: {schemas: {%s: {type: object}}}
"""


def write(folder: Path, name: str, operation: str = "m.f", component: str = "A") -> None:
    (folder / f"{name}.yaml").write_text(MINIMAL % (operation, component))


def test_each_path_lives_in_one_document(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two", "m.g", "B")
    with pytest.raises(ConfigError, match="/a is in another document"):
        load(tmp_path)


def test_component_names_are_unique(tmp_path: Path) -> None:
    write(tmp_path, "one")
    (tmp_path / "two.yaml").write_text((MINIMAL % ("m.g", "A")).replace("/a:", "/b:"))
    with pytest.raises(ConfigError, match="component schemas/A"):
        load(tmp_path)


def test_operation_ids_are_unique(tmp_path: Path) -> None:
    write(tmp_path, "one")
    (tmp_path / "two.yaml").write_text((MINIMAL % ("m.f", "B")).replace("/a:", "/b:"))
    with pytest.raises(ConfigError, match="occurs twice"):
        load(tmp_path)


def test_a_broken_reference_is_named(tmp_path: Path) -> None:
    write(tmp_path, "one")
    text = (tmp_path / "one.yaml").read_text().replace("{type: object}", '{$ref: "gone.yaml#/x"}')
    (tmp_path / "one.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load(tmp_path)


def test_unknown_paths_take_the_shape_of_their_prefix() -> None:
    contract = Contract({}, (), (("/v1/messages", "anthropic"),))
    assert contract.shape_of_path("/v1/messages/nope") == "anthropic"
    assert contract.shape_of_path("/v1/nope") == "openai"


def properties_of(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of every schema, by its place."""
    if isinstance(node, list):
        for i, item in enumerate(node):
            yield from properties_of(item, f"{path}/{i}")
    elif isinstance(node, dict):
        for key, item in node.items():
            if key == "properties" and isinstance(item, dict) and not path.endswith("/properties"):
                yield from ((f"{path}/{name}", sub) for name, sub in item.items())
            if key not in ("examples", "example", "default"):
                yield from properties_of(item, f"{path}/{key}")


def is_described(contract: Contract, schema: Any) -> bool:
    if "description" in schema:
        return bool(schema["description"].strip())
    return "$ref" in schema and is_described(contract, contract.resolve(schema["$ref"].removeprefix("#")))


def test_every_field_is_described() -> None:
    found = list(properties_of(LOADED.document))
    assert len(found) > 1200
    assert [place for place, schema in found if not is_described(LOADED, schema)] == []


def test_every_parameter_is_described() -> None:
    operations = [one for item in LOADED.document["paths"].values() for one in (item, *item.values())]
    found = [LOADED.follow(p) for one in operations if isinstance(one, dict) for p in one.get("parameters", ())]
    assert len(found) > 5
    assert [parameter["name"] for parameter in found if not parameter.get("description")] == []


def test_every_route_has_an_example_on_the_page() -> None:
    shown = page(LOADED.document)
    assert shown.count("<pre><code>curl ") == len(LOADED.operations)
    bodies = [o for o in LOADED.operations if "application/json" in o.body_pointers]
    examples = [shown.count(f"-H 'content-type: application/json' -d '{opener}") for opener in "{["]
    assert sum(examples) == len(bodies) > 15
    assert "<td></td>" not in shown, "a field without a description"


def test_the_pages_have_an_icon_and_ask_for_no_other_file() -> None:
    for shown in (page(LOADED.document), front_page("m", "ready", "localhost")):
        (icon,) = re.findall(r'<link rel="icon" href="([^"]*)">', shown)
        assert icon.startswith("data:image/svg+xml,") and "src=" not in shown
        ElementTree.fromstring(unquote(icon.partition(",")[2]))


def test_every_operation_names_what_its_head_may_be_refused_with() -> None:
    """Host or browser, key, rate, drain: by the order of api/entrance.py."""
    for one in LOADED.operations:
        documented = {status for status, _ in one.response_pointers}
        wanted = {"403", "405", "500"}
        if not one.public:
            wanted |= {"401", "503"} | (set() if one.is_probe else {"429"})
        assert wanted <= documented, (one.id, wanted - documented)
