"""References to the published meta-schemas, judged by `jsonschema`, which knows the same documents."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

import jsonschema
import pytest
from imp_server.core import GrammarRefused
from imp_server.grammar.check import check_schema
from imp_server.grammar.values.schema.published import ADDRESSES, published
from jsonschema.validators import validator_for

from tests.grammar.judging import matcher, reads
from tests.grammar.store import changed

VALIDATOR = jsonschema.Draft202012Validator
SCHEMAS: list[Any] = [
    True,
    {"type": "string", "minLength": 2, "enum": ["ab"]},
    {"type": ["object", "null"], "properties": {"a": {"minimum": 0}, "b": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}},
    {"allOf": [{"items": {"type": "array", "uniqueItems": True}}, {"not": {"const": [1, None]}}], "title": "t"},
    {"patternProperties": {"^a": {"maxItems": 3}}, "additionalProperties": False, "required": ["a"]},
    {"definitions": {"p": {"minimum": 3, "maximum": 4}}, "dependencies": {"a": ["b"]}, "format": "date"},
    {"if": {"contains": {"type": "number"}}, "then": {"maxProperties": 2}, "else": {"multipleOf": 0.5}},
]


def test_all_addresses_are_there() -> None:
    documents = {uri: published(uri) for uri in ADDRESSES}
    assert all(str(found.get("$id", found.get("id"))).rstrip("#") == uri for uri, found in documents.items())


@pytest.mark.parametrize("uri", sorted(ADDRESSES))
def test_schemas_are_values_of_them(uri: str) -> None:
    schema = {"type": "array", "items": {"$ref": uri}}
    m = matcher(schema)
    loose, strict = VALIDATOR(schema), VALIDATOR(schema, format_checker=VALIDATOR.FORMAT_CHECKER)
    rng = random.Random(uri)
    n_valid = n_invalid = 0
    for _ in range(60):
        value = rng.choice(SCHEMAS)
        for _ in range(rng.randrange(3)):
            value = changed(value, rng)
        accepted = reads(m, json.dumps([value]))
        if accepted:
            assert loose.is_valid([value]), value
        else:
            assert not strict.is_valid([value]), value
        n_valid += accepted
        n_invalid += not accepted
    assert n_valid > 10
    assert n_invalid > 5 or "/meta/" in uri


def test_parts_of_them_can_be_named() -> None:
    m = matcher({"$ref": "http://json-schema.org/draft-07/schema#/definitions/simpleTypes"})
    assert reads(m, '"integer"')
    assert not reads(m, '"int"')


def test_an_outer_resource_with_the_anchor_is_what_they_mean_by_themselves() -> None:
    """A dialect of one's own: schemas that must have a title, all the way down."""
    for draft, own, other in (
        ("2020-12", {"$dynamicAnchor": "meta"}, {}),
        ("2019-09", {"$recursiveAnchor": True}, {"$recursiveAnchor": False}),
    ):
        uri = f"https://json-schema.org/draft/{draft}/schema"
        outer = {"$schema": uri, "$id": "urn:titled", "$ref": uri, "required": ["title"]}
        titled, plain = matcher(outer | own), matcher(outer | other)
        text = '{"title": "a", "items": {"type": "null"}}'
        assert not reads(titled, text)
        assert reads(plain, text)
        assert reads(titled, text.replace('"type"', '"title": "b", "type"'))
        assert not validator_for(outer)(outer | own).is_valid(json.loads(text))


@pytest.mark.parametrize(
    "reference",
    [
        "https://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-03/schema#",
        "http://json-schema.org/schema",
        "https://json-schema.org/draft/2020-12/other",
        "https://example.org/schema.json",
    ],
)
def test_other_documents_are_still_refused(reference: str) -> None:
    with pytest.raises(GrammarRefused, match="leads outside") as caught:
        check_schema({"properties": {"a": {"$ref": reference}}})
    assert caught.value.pointer == "/properties/a/$ref"


def test_they_are_cheap() -> None:
    """Neither is the package imported nor are the orders in which vocabularies refer to each other told apart."""
    code = (
        "import sys, json; from imp_server.grammar.values.schema.published import published;"
        "published('http://json-schema.org/draft-07/schema'); print('referencing' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout.strip() == "False"
    schema = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    check_schema(schema)
    began = time.process_time()
    check_schema(schema)
    assert time.process_time() - began < 1.0
