"""A name that no model has is a 404 on every route that takes one, wherever it takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.api.contract import Contract, Operation, load
from imp_server.resources import data_folder

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import live_server

CONTRACT = load(data_folder("spec"))
ELSEWHERE = {
    "llamacpp_router.fetch_model": "it isn't here yet",
    "llamacpp_router.remove_model": "of a server of several models",
    "openai_responses.compact_response": "it is looked up with the conversation",
}
NAME = "nobody"
SETTINGS = {"server.props": True, "server.predict_route": "/predict", "prefix_cache.slots_path": "/nowhere/at/all"}


def example(contract: Contract, operation: Operation) -> Any:
    """The first body that the document shows."""
    media = (
        contract.document["paths"][operation.path][operation.method.lower()].get("requestBody", {}).get("content", {})
    )
    examples = media.get("application/json", {}).get("examples", {})
    return next((one["value"] for one in examples.values()), None)


def takers() -> Iterator[tuple[str, str, Any, str]]:
    """Method, path and body of a request that names no model's name; once for each place."""
    for one in CONTRACT.operations:
        if one.id in ELSEWHERE:
            continue
        body, path = example(CONTRACT, one), one.path
        for parameter in one.parameters:
            if parameter.where == "path" and parameter.name != "model":
                path = path.replace(f"{{{parameter.name}}}", "0")
        path = path.replace("{model}", NAME)
        extra = "action=erase&" if one.id == "llamacpp_slot_files.slot_action" else ""
        if any(parameter.name == "model" for parameter in one.parameters):
            yield one.method, f"{path}?{extra}model={NAME}", body, one.id
        pointer = one.body_pointers.get("application/json")
        if pointer and isinstance(body, dict) and "model" in _properties(CONTRACT.resolve(pointer)):
            yield one.method, path + (f"?{extra}" if extra else ""), {**body, "model": NAME}, one.id


def _properties(schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        return _properties(CONTRACT.resolve(schema["$ref"][1:]))
    return set(schema.get("properties", {})).union(*(_properties(one) for one in schema.get("allOf", ())))


TAKERS = list(takers())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server(scripted, ByteText, settings=SETTINGS) as live:
        yield live.url


def test_all_routes_are_asked() -> None:
    assert len({identity for *_, identity in TAKERS}) > 25
    assert {"llamacpp.set_props", "llamacpp_adapters.scale_adapters", "llamacpp.slots"} <= {one[3] for one in TAKERS}


@pytest.mark.parametrize(("method", "path", "body"), [one[:3] for one in TAKERS], ids=[one[3] for one in TAKERS])
def test_an_unknown_name_is_a_404(url: str, method: str, path: str, body: Any) -> None:
    reply = httpx.request(method, url + path, json=body)
    assert reply.status_code == 404 and "nobody" in reply.text, reply.text
