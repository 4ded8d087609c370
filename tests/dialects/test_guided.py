"""vLLM's names of constraints on the dialects that have a field of their own for it."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.core import InvalidRequest

from tests.dialects.replies import DIALECTS
from tests.dialects.test_tool_matrix import grammar_of, takes

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ALIASES: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": SCHEMA}, '{"n": 1}', "{}"),
    ({"guided_json": '{"type": "integer"}'}, "7", '"7"'),
    ({"guided_regex": "a+b"}, "aab", "b"),
    ({"guided_choice": ["yes", "no"]}, "no", "maybe"),
    ({"guided_grammar": 'root ::= "x" [0-9]'}, "x4", "x"),
    ({"structured_outputs": {"json": SCHEMA}}, '{"n": 1}', "1"),
    ({"structured_outputs": {"regex": "a+b"}}, "ab", "a"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes", ""),
    ({"structured_outputs": {"grammar": 'root ::= "x" [0-9]'}}, "x0", "x"),
    ({"structured_outputs": {"grammar": 'start: "x" DIGIT\nDIGIT: /[0-9]/'}}, "x0", "x"),
    ({"guided_grammar": 'start: "x" DIGIT\n%import common.DIGIT'}, "x0", "xx"),
    ({"structured_outputs": {"json_object": True}}, "{}", "[]"),
]
ON_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_object", "value": SCHEMA}}, '{"n": 1}', "{}"),
    ({"regex": "a+b"}, "aab", "b"),
    ({"ebnf": 'root ::= "x" [0-9]'}, "x4", "x"),
]
"""What other servers' clients send to this route alone."""
OWN: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}


def body_of(name: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"model": "toy", **DIALECTS[name].body, DIALECTS[name].limit: 200, **more}


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize(("alias", "good", "bad"), ALIASES)
def test_an_alias_binds_the_answer(name: str, alias: dict[str, Any], good: str, bad: str) -> None:
    grammar = grammar_of(name, body_of(name, alias))
    assert grammar is not None
    assert takes(grammar, good) and not takes(grammar, bad)


@pytest.mark.parametrize(("alias", "good", "bad"), ON_CHAT)
def test_other_servers_names_bind_a_chat(alias: dict[str, Any], good: str, bad: str) -> None:
    grammar = grammar_of("chat", body_of("chat", alias))
    assert grammar is not None
    assert takes(grammar, good) and not takes(grammar, bad)


def test_a_lark_grammar_that_cant_be_read_names_its_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar_of("chat", body_of("chat", {"structured_outputs": {"grammar": "start: ("}}))
    assert (caught.value.code, caught.value.param) == ("grammar_unsupported", "structured_outputs.grammar")


@pytest.mark.parametrize("name", list(DIALECTS))
def test_an_alias_beside_the_dialects_own_field(name: str) -> None:
    """Saying the same twice is fine, two different things are refused: nothing is dropped in silence."""
    assert grammar_of(name, body_of(name, OWN[name] | {"guided_json": SCHEMA})) is not None
    with pytest.raises(InvalidRequest, match="guided_regex"):
        grammar_of(name, body_of(name, OWN[name] | {"guided_regex": "a"}))


@pytest.mark.parametrize("name", list(DIALECTS))
def test_nulls_bind_nothing(name: str) -> None:
    nulls = dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"))
    assert grammar_of(name, body_of(name, nulls)) is None
