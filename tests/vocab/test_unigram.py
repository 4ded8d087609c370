"""Unigram vocabularies: the ids of SentencePiece and of transformers, on nasty texts."""

from __future__ import annotations

import base64
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import InvalidModel
from imp_server.vocab.from_gguf import CONTROL, tokenizer_of_gguf
from imp_server.vocab.from_json import tokenizer_of_json
from imp_server.vocab.tokenizer import Tokenizer
from imp_server.vocab.unigram import silenced
from transformers import T5Tokenizer

from tests.vocab.adversarial import TEXTS

# SentencePiece's own, made by analysis/unigram_ids.py.
MADE: dict[str, Any] = json.loads((Path(__file__).parent / "sentencepiece_ids.json").read_text())
KINDS = sorted(MADE["kinds"])


def keys_of(kind: str) -> dict[str, Any]:
    keys = MADE["kinds"][kind]["keys"]
    charsmap = list(base64.b64decode(keys["precompiled_charsmap"]))
    named = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>"}
    special = {f"{name}_token_id": keys["tokens"].index(text) for name, text in named.items() if text in keys["tokens"]}
    return {**keys, "model": "t5", "precompiled_charsmap": charsmap, "add_eos_token": True, **special}


@cache
def ours(kind: str) -> Tokenizer:
    return tokenizer_of_gguf(keys_of(kind), "t5")


@pytest.mark.parametrize("kind", KINDS)
def test_what_sentencepiece_makes_of_it(kind: str) -> None:
    for text, expected in zip(MADE["texts"], MADE["kinds"][kind]["ids"], strict=True):
        assert ours(kind).encode(text).tolist() == expected, text


def test_the_kinds_differ() -> None:
    assert len({json.dumps(kind["ids"]) for kind in MADE["kinds"].values()}) == len(KINDS)
    ids = [i for found in MADE["kinds"]["as in T5"]["ids"] for i in found]
    assert 2 in ids, "texts without anything unknown would prove little"


@cache
def theirs() -> T5Tokenizer:
    keys = MADE["kinds"]["as in T5"]["keys"]
    return T5Tokenizer(
        vocab=list(zip(keys["tokens"], keys["scores"], strict=True)),
        _spm_precompiled_charsmap=base64.b64decode(keys["precompiled_charsmap"]),
        unk_token="<unk>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_ids=0,
    )


def alike(text: str) -> str:
    return re.sub(r"\s", " ", re.sub("</s>|<pad>|<unk>", "", text.replace("\u2581", "_")))


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.sampled_from(TEXTS), st.text(st.characters(codec="utf-8"), max_size=40)))
def test_what_transformers_makes_of_it(text: str) -> None:
    """But for the bar itself, which it takes for a blank that was there before, for blanks of other kinds, and for what
    spells a special token."""
    plain = alike(text)
    found = ours("as in T5").encode(plain, add_special=True).tolist()
    assert found == theirs()(plain).input_ids, plain


def test_both_kinds_of_file_agree(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    theirs().backend_tokenizer.save(str(path))
    read = tokenizer_of_json(path, {"eos_token": "</s>"})
    made = ours("as in T5")
    for text in MADE["texts"]:
        plain = alike(text)
        assert read.encode(plain, add_special=True).tolist() == made.encode(plain, add_special=True).tolist(), text
    assert [read.vocabulary.plain_bytes(i) for i in range(read.vocabulary.size)] == [
        made.vocabulary.plain_bytes(i) for i in range(read.vocabulary.size)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_text_spells_no_control_token(kind: str) -> None:
    special = {i for i, sort in enumerate(MADE["kinds"][kind]["keys"]["token_type"]) if sort == CONTROL}
    found = set(ours(kind).encode("<s> a</s> </s><pad> <unk>").tolist())
    assert len(special) > 1 and not found & special
    assert ours(kind).eos_id in ours(kind).encode("a</s>", control=True)


def test_a_text_comes_back() -> None:
    tokenizer = ours("with bytes")
    for text in ("Hello, world! 12", "日本 é 👍🏽", "a b"):
        assert tokenizer.decode(tokenizer.encode(text).tolist()) == text.replace("é", "e\u0301")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("precompiled_charsmap", "abc", "isn't a list of bytes"),
        ("precompiled_charsmap", [1, 2, 3], "the tokenizers library refuses"),
        ("scores", None, "isn't a list of finite numbers"),
        ("token_type", [1] * 3, "entries for"),
    ],
)
def test_damage_is_named(key: str, value: Any, what: str) -> None:
    with pytest.raises(InvalidModel, match=what):
        tokenizer_of_gguf({**keys_of("as in T5"), key: value}, "t5")


def test_what_is_silent_doesnt_change_what_the_unknown_costs() -> None:
    (first, *scores) = zip(*silenced([("<unk>", 0.0), ("a", -2.0), ("[PAD]", -1000.0)], {0, 2}), strict=True)
    assert first[1] == "a" and scores == [(-2.0, -2.0, -2.0)] and len(set(first)) == 3
    assert not {"<unk>", "[PAD]"} & set(first)


def test_in_a_file_that_keeps_its_blanks_no_text_spells_what_is_silent(tmp_path: Path) -> None:
    vocab = [["<unk>", 0.0], ["</s>", 0.0], ["<x>", 0.0], *([text, -6.0] for text in "a 012"), ["lo", -7.0]]
    added = [{"id": 1, "content": "</s>", "special": True}, {"id": 2, "content": "<x>", "special": False}]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}, "added_tokens": added}))
    assert tokenizer_of_json(path, {}).encode("a 0 1 2").tolist() == [3, 4, 5, 4, 6, 4, 7]
