"""A field that takes one empty value only says so in English: it isn't supported, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.api.contract import load
from imp_server.api.violation import UNSUPPORTED
from imp_server.resources import data_folder

USER = [{"role": "user", "content": "hi"}]
CHAT = ("/v1/chat/completions", {"messages": USER})
RESPONSES = ("/v1/responses", {"input": "hi"})
COMPLETIONS = ("/v1/completions", {"prompt": "hi"})
NATIVE = ("/completion", {"prompt": "hi"})
TGI = ("/generate", {"inputs": "hi"})
CASES: list[tuple[tuple[str, dict[str, Any]], dict[str, Any], str, str]] = [
    (RESPONSES, {"prompt": {"id": "p"}}, "prompt", "instructions"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions", "tools"),
    (CHAT, {"functions": [{"name": "f"}] * 5000}, "functions", "tools"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities[1]", "text"),
    (CHAT, {"echo": True}, "echo", "/v1/completions"),
    (CHAT, {"n_probs": 3}, "n_probs", "top_logprobs"),
    (CHAT, {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "tools"),
    (COMPLETIONS, {"return_tokens": True}, "return_tokens", "/completion"),
    (COMPLETIONS, {"preserved_tokens": ["<x>"]}, "preserved_tokens", "leave it out"),
    (NATIVE, {"adaptive_target": 0.5}, "adaptive_target", "mirostat"),
    (NATIVE, {"grammar_lazy": True}, "grammar_lazy", "tools"),
]


@pytest.mark.parametrize(("where", "field", "param", "instead"), CASES)
def test_the_error_says_what_to_do(
    http: httpx.Client, where: tuple[str, dict[str, Any]], field: dict[str, Any], param: str, instead: str
) -> None:
    path, body = where
    reply = http.post(path, json={"model": "m", **body, **field})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, "unsupported_parameter")
    assert error["message"].startswith(f'"{param}" isn\'t supported here: ') and instead in error["message"]


@pytest.mark.parametrize("field", ["watermark", "truncate"])
def test_where_errors_have_no_param(http: httpx.Client, field: str) -> None:
    reply = http.post("/generate", json={"inputs": "hi", "parameters": {field: 3}})
    assert f'"parameters.{field}" isn\'t supported here' in reply.json()["error"]


def one_valued(node: Any, path: str = "", *, is_branch: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas that take nothing but one empty value, by their place. A null beside other branches is no value."""
    if isinstance(node, list):
        for i, item in enumerate(node):
            yield from one_valued(item, f"{path}/{i}", is_branch=path.endswith(("anyOf", "oneOf")))
    if not isinstance(node, dict):
        return
    values = set(map(repr, node.get("enum", ()))) - {"None"}
    if (
        (len(values) == 1 and values <= {"False", "0", "1"})
        or node.get("maxItems") == 0
        or (node.get("type") == "null" and not is_branch)
        or ("maximum" in node and node.get("maximum") == node.get("minimum"))
        or node.get("exclusiveMaximum") == 0
    ):
        yield path, node
    for key, item in node.items():
        if key not in ("examples", "responses"):
            yield from one_valued(item, f"{path}/{key}")


def test_no_such_field_of_a_request_is_without_advice() -> None:
    document = load(data_folder("spec")).document
    schemas = document["components"]["schemas"]
    asked: set[str] = set()
    todo: list[Any] = [
        {k: v for k, v in item.items() if k != "responses"}
        for path in document["paths"].values()
        for item in path.values()
        if isinstance(item, dict)
    ]
    found: dict[str, dict[str, Any]] = {}
    while todo:
        node = todo.pop()
        found |= dict(one_valued(node, str(node.get("x-name", ""))))
        for name in refs(node) - asked:
            asked.add(name)
            todo.append({"x-name": name, **schemas[name]})
    assert len(found) >= 20
    assert {place for place, schema in found.items() if UNSUPPORTED not in schema} == set()


def refs(node: Any) -> set[str]:
    """Names of the schemas that this one refers to."""
    if isinstance(node, list):
        return set().union(*map(refs, node))
    if not isinstance(node, dict):
        return set()
    name = str(node.get("$ref", "")).partition("/schemas/")[2].partition("/")[0]
    own = {name} if name else set()
    return own.union(*(refs(item) for key, item in node.items() if key != "responses"))
