"""`$schema`: a published draft decides how keywords are read, an unknown dialect is refused by name."""

from __future__ import annotations

import pytest
from imp_server.core import GrammarRefused

from tests.grammar.judging import accepts, matcher


@pytest.mark.parametrize(
    ("uri", "four"),
    [
        ("http://json-schema.org/draft-04/schema#", True),
        ("https://mirror.example/draft-04/schema", True),
        ("http://json-schema.org/draft-06/schema#", False),
        ("https://json-schema.org/draft/2019-09/schema", False),
        ("https://json-schema.org/draft/2020-12/schema", False),
        ("https://spec.openapis.org/oas/3.1/dialect/base", False),
        ("http://json-schema.org/schema#", False),
        ("person.json", False),
    ],
)
def test_known_dialects(uri: str, four: bool) -> None:
    """In draft 4 alone exclusiveMinimum is Boolean."""
    bound = {"minimum": 1, "exclusiveMinimum": True} if four else {"exclusiveMinimum": 1}
    schema = {"$schema": uri, "type": "integer", **bound}
    assert accepts(schema, "2") and not accepts(schema, "1")


@pytest.mark.parametrize(
    "uri", ["https://example.org/metaschema.json", "http://localhost/dialect", "https://example.org/json-schema.org/x"]
)
def test_unknown_dialects_are_refused(uri: str) -> None:
    with pytest.raises(GrammarRefused, match="dialect") as refusal:
        matcher({"$defs": {"a": {"$id": "https://example.org/a", "$schema": uri}}, "$ref": "#/$defs/a"})
    assert refusal.value.pointer == "/$defs/a/$schema"


def test_drafts_before_4_are_refused() -> None:
    with pytest.raises(GrammarRefused, match="drafts before 4"):
        matcher({"$schema": "http://json-schema.org/draft-03/schema#"})


@pytest.mark.parametrize(
    ("uri", "hides"),
    [
        ("http://json-schema.org/draft-04/schema#", True),
        ("http://json-schema.org/draft-07/schema", True),
        ("https://json-schema.org/draft-07/schema#", False),
        ("http://json-schema-org/draft-07/schema#", False),
        ("http://json-schema.org/draft/2019-09/schema#", False),
        (None, False),
    ],
)
def test_a_reference_hides_its_siblings_in_old_drafts_alone(uri: str | None, hides: bool) -> None:
    """Not under an address that validators take for the newest draft."""
    name = {} if uri is None else {"$schema": uri}
    inner = {"$ref": "#/definitions/text", "maxLength": 2}
    schema = {**name, "properties": {"a": inner}, "definitions": {"text": {"type": "string"}}}
    assert accepts(schema, '{"a": "abc"}') == hides
    assert accepts(schema, '{"a": "ab"}') and not accepts(schema, '{"a": 1}')
    address = "https://example.org/r"
    resource = {"$defs": {"r": {"id": address, "$id": address, **schema}}, "$ref": address}
    assert accepts(resource, '{"a": "abc"}') == hides


@pytest.mark.parametrize("keyword", ["$defs", "definitions"])
def test_a_part_that_names_draft_4_stays_part_of_its_resource(keyword: str) -> None:
    """`id` identifies where the draft around it says so: elsewhere references lead on into the document."""
    part = {"$schema": "http://json-schema.org/draft-04/schema#", "id": "https://example.org/part"}
    schema = {
        "type": "object",
        "properties": {"a": {**part, "properties": {"b": {"$ref": f"#/{keyword}/text"}}}},
        keyword: {"text": {"type": "string"}},
    }
    assert accepts(schema, '{"a": {"b": "x"}}') and not accepts(schema, '{"a": {"b": 1}}')


def test_an_id_of_draft_4_is_a_base_in_a_document_of_draft_4() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"a": {"id": "https://example.org/part", "$ref": "#/definitions/text"}, "b": {
            "id": "https://example.org/other", "properties": {"c": {"$ref": "#/definitions/text"}},
            "definitions": {"text": {"type": "string"}},
        }},
        "definitions": {"text": {"type": "integer"}},
    }  # fmt: skip
    assert accepts(schema, '{"b": {"c": "x"}, "a": 1}') and not accepts(schema, '{"b": {"c": 1}}')
