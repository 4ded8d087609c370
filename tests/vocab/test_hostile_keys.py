"""Tokenizer keys of strangers: built or refused with a message, whatever stands in them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import UserFault
from imp_server.vocab.from_gguf import tokenizer_of_gguf

from tests.vocab.adversarial import byte_level_keys, piece_keys, word_piece_keys

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.text(max_size=4), max_size=6),
    st.lists(st.integers(-5, 300), max_size=6).map(lambda v: np.array(v, dtype=np.int64)),
    st.lists(st.floats(width=32), max_size=6).map(lambda v: np.array(v, dtype=np.float32)),
    st.just({}),
)
KEYS = [
    "tokens", "token_type", "scores", "merges", "pre", "model", "bos_token_id", "eos_token_id", "unknown_token_id",
    "add_bos_token", "add_space_prefix", "normalizer.lowercase",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([byte_level_keys("smollm"), piece_keys(), word_piece_keys()]),
    st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3),
)
def test_any_value_of_any_key(keys: dict[str, Any], changes: dict[str, Any]) -> None:
    with contextlib.suppress(UserFault):  # anything else is a failure
        tokenizer = tokenizer_of_gguf({**keys, **changes})
        tokenizer.decode(tokenizer.encode("Hello <s> é 12", control=True, add_special=True).tolist())


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["gpt2", "llama", "bert", "t5"]),
    st.lists(st.text(max_size=4), min_size=1, max_size=12),
    st.data(),
)
def test_any_vocabulary(model: str, tokens: list[str], data: st.DataObject) -> None:
    """Duplicates, empty texts, any types, merges of anything."""
    n = len(tokens)
    keys = {
        "model": model,
        "tokens": tokens,
        "token_type": data.draw(st.lists(st.integers(-1, 9), min_size=n, max_size=n)),
        "scores": data.draw(st.lists(st.floats(width=32), min_size=n, max_size=n)),
        "merges": data.draw(st.lists(st.text(max_size=6), max_size=5)),
        "unknown_token_id": data.draw(st.integers(0, n)),
    }
    with contextlib.suppress(UserFault):
        tokenizer = tokenizer_of_gguf(keys)
        tokenizer.decode(tokenizer.encode("ab <s> é", control=True, add_special=True).tolist())


def test_messages_name_the_key() -> None:
    for key, value in (("tokens", 3), ("token_type", ["x"]), ("scores", "y"), ("merges", 7)):
        base = piece_keys() if key == "scores" else byte_level_keys("smollm")
        with pytest.raises(UserFault, match=rf"tokenizer\.ggml\.{key}"):
            tokenizer_of_gguf({**base, key: value})
