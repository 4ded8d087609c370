"""JSON pointers: the examples of RFC 6901, and any path there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imp_server.core.json_pointer import keys_of, pointer_to


@pytest.mark.parametrize(
    ("path", "pointer"),
    [([], ""), (["foo", 0], "/foo/0"), ([""], "/"), (["a/b"], "/a~1b"), (["m~n"], "/m~0n"), (["~1"], "/~01")],
)  # fmt: skip
def test_the_examples_of_the_rfc(path: list[str | int], pointer: str) -> None:
    assert pointer_to(path) == pointer and keys_of(pointer) == [str(key) for key in path]


@given(st.lists(st.text()))
def test_there_and_back(path: list[str]) -> None:
    assert keys_of(pointer_to(path)) == path
