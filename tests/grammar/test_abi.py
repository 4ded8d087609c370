"""A grammar library whose structs or calls differ from Python's is refused by name, not met by an AttributeError."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.core import UnsupportedModel
from imp_server.grammar.frames.space import Space
from imp_server.grammar.machines import abi


def test_every_field_lies_where_the_library_has_it() -> None:
    library = abi.grammar_library()
    assert library is not None, "the native library 'grammar' isn't built"
    assert abi.fields_there(library) == abi.fields_here()


@pytest.mark.parametrize(
    "change",
    [
        lambda there: there.update({"Cursor.block": there["Cursor.n_levels"], "Cursor.n_levels": 0}),  # swapped
        lambda there: there.update({"calls": there["calls"] - 1}),
        lambda there: there.update({"Walker": there["Walker"] + 8}),
        lambda there: there.clear(),
    ],
)
def test_any_difference_is_another_version(change: Any) -> None:
    there = abi.fields_here()
    change(there)
    with pytest.raises(UnsupportedModel, match=r"another version of imp \(\w+(\.\w+)? differs\): run 'make native'"):
        abi.refuse_another_version(there)


def test_a_stale_library_is_refused_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """One from before it could tell its fields has none of the functions either."""
    abi.grammar_library.cache_clear()
    monkeypatch.setattr(abi, "load_library", lambda _: object())
    try:
        with pytest.raises(UnsupportedModel, match="grammar library is from another version"):
            Space(256)
    finally:
        abi.grammar_library.cache_clear()
