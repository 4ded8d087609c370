"""A listed string has one spelling, so that it is forced text; free text has every one that JSON allows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.grammar.judging import matcher, reads

LISTED: list[Any] = [
    {"enum": ["abc"]},
    {"const": "abc"},
    {"enum": ["abc", "abd", 7, None]},
    {"enum": ["abc", "x"], "minLength": 2},
    {"anyOf": [{"const": "abc"}, {"enum": ["x", "y"]}]},
    {"allOf": [{"type": "string"}, {"enum": ["abc", "zz"]}, {"pattern": "^a"}]},
]
OTHER_SPELLINGS = ['"\\u0061bc"', '"a\\u0062c"', '"ab\\u0063"', '"\\u0061\\u0062\\u0063"']


@pytest.mark.parametrize("schema", LISTED)
def test_listed_strings_have_one_spelling(schema: Any) -> None:
    for place, frame in ((schema, "%s"), ({"properties": {"k": schema}}, '{"k":%s}'), ({"items": schema}, "[%s]")):
        m = matcher(place)
        assert reads(m, frame % '"abc"')
        assert [text for text in OTHER_SPELLINGS if reads(m, frame % text)] == []


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"pattern": "^a"}, {"maxLength": 3}, {"anyOf": [{"const": "x"}, {"minLength": 3}]}]
)
def test_free_text_has_every_spelling(schema: Any) -> None:
    m = matcher(schema)
    assert [text for text in ['"abc"', *OTHER_SPELLINGS] if not reads(m, text)] == []


def test_what_must_be_escaped_has_its_shortest_spelling() -> None:
    m = matcher({"enum": ['a"\\\n'], "type": "string"})
    assert reads(m, '"a\\"\\\\\\n"')
    assert not reads(m, '"\\u0061\\"\\\\\\n"')
