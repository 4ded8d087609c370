"""Lenient schemas: what is left out is named, what is left is weaker, and the finished text is judged by all of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from imp_server.config import Config
from imp_server.core import (
    ChatRequest,
    Finish,
    GrammarRefused,
    GrammarUnsatisfiable,
    Message,
    ResponseFormat,
    TextPart,
    Usage,
    pack_ids,
)
from imp_server.grammar.check import check_schema
from imp_server.grammar.relaxed import MAX_BYTES, relaxed_schema
from imp_server.grammar.whole_schema import satisfies
from imp_server.text.session import VIOLATED

from tests.asked import made
from tests.grammar.judging import accepts
from tests.toy import byte_model

WORD = r"(?<=\b)cat\b"
"""Lookbehinds that look ahead, too, are refused."""


@pytest.mark.parametrize(
    ("schema", "ignored"),
    [
        ({"type": "string"}, ()),
        ({"type": "string", "pattern": WORD}, ("/pattern",)),
        ({"properties": {"not": {"pattern": WORD, "maxLength": 2}}}, ("/properties/not/pattern",)),
        ({"properties": {"a": {"not": {"pattern": WORD}}}}, ("/properties/a/not",)),
        ({"anyOf": [{"$ref": "https://example.org/x"}, {"type": "null"}]}, ("/anyOf/0/$ref",)),
        ({"items": [{"pattern": WORD}], "$schema": "https://example.org/dialect"}, ("/$schema",)),
        ({"oneOf": [{"pattern": WORD}, {"type": "null"}], "type": ["string", "null"]}, ("/oneOf",)),
        ({"a/b": 1, "properties": {"a/b": {"pattern": WORD}}}, ("/properties/a~1b/pattern",)),
    ],
)
def test_what_is_left_out(schema: Any, ignored: tuple[str, ...]) -> None:
    relaxed, left_out = relaxed_schema(schema)
    assert left_out[: len(ignored)] == ignored and bool(left_out) == bool(ignored)
    check_schema(relaxed)
    if ignored:
        with pytest.raises(GrammarRefused):
            check_schema(schema)


def test_the_rest_is_still_enforced() -> None:
    relaxed, _ = relaxed_schema({"properties": {"a": {"type": "string", "pattern": WORD, "maxLength": 3}}})
    assert accepts(relaxed, '{"a": "dog"}') and not accepts(relaxed, '{"a": "dogs"}')


def test_what_nothing_satisfies_stays_refused() -> None:
    with pytest.raises(GrammarUnsatisfiable):
        relaxed_schema({"type": "string", "pattern": WORD, "minLength": 2, "maxLength": 1})


def chat(schema: Any) -> ChatRequest:
    return made(
        ChatRequest,
        model="toy",
        messages=(Message("user", (TextPart("hi"),)),),
        response_format=ResponseFormat("json_schema", schema=schema),
    )


def finish_of(text: str, schema: Any) -> Finish:
    model = byte_model(config=lenient_config())
    prepared = model.prepare_chat(chat(schema), 1)
    assert prepared.ignored
    for at in range(0, len(text), 3):
        prepared.session.push(0, pack_ids(list(text.encode())[at : at + 3]))
    *_, finish = prepared.session.finish(0, "stop", Usage())
    assert isinstance(finish, Finish)
    asked = prepared.session.unjudged(0)
    assert asked is not None and json.loads(asked.schema) == schema and asked.answer == text
    return finish if satisfies(asked) else msgspec.structs.replace(finish, detail=VIOLATED)


def lenient_config() -> Config:
    config = Config()
    return msgspec.structs.replace(config, grammar=msgspec.structs.replace(config.grammar, lenient=True))


def test_the_finished_text_is_judged() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": WORD}}}
    assert finish_of('{"a": "a cat"}', schema).detail is None
    assert finish_of('{"a": "concat"}', schema).detail == "schema_violated"


def test_a_schema_that_no_validator_can_read_is_refused() -> None:
    model = byte_model(config=lenient_config())
    with pytest.raises(GrammarRefused, match="validated"):
        model.prepare_chat(chat({"$ref": "https://example.org/elsewhere"}), 1)


def test_by_default_nothing_is_ignored() -> None:
    with pytest.raises(GrammarRefused):
        byte_model().prepare_chat(chat({"type": "string", "pattern": WORD}), 1)


def test_large_schemas_are_refused_as_they_are() -> None:
    with pytest.raises(GrammarRefused, match="pattern"):
        relaxed_schema({"type": "string", "pattern": WORD, "description": "d" * MAX_BYTES})
