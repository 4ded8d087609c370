"""What may become a control token, BOS and EOS, byte tables, broken vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import InvalidModel, UnsupportedModel, special
from imp_server.vocab.from_gguf import tokenizer_of_gguf
from imp_server.vocab.from_json import tokenizer_of_json

from tests.vocab.adversarial import TEXTS, byte_level_keys, piece_keys, word_piece_keys

ALL_KEYS: dict[str, dict[str, Any]] = {
    "llama-bpe": byte_level_keys("llama-bpe"),
    "smollm": byte_level_keys("smollm"),
    "llama": piece_keys(),
    "gemma": piece_keys(False),
    "bert": word_piece_keys(),
}


@pytest.mark.parametrize("kind", ALL_KEYS)
def test_text_never_spells_a_control_token(kind: str) -> None:
    tokenizer = tokenizer_of_gguf(ALL_KEYS[kind])
    control = {t.id: t.text for t in tokenizer.added if t.control}
    unknown = ALL_KEYS[kind].get("unknown_token_id")
    for text in [*control.values(), *(f"x{t}y {t}" for t in control.values()), *TEXTS]:
        assert not set(tokenizer.encode(text).tolist()) & (set(control) - {unknown})
    for i, text in control.items():
        assert i in tokenizer.encode(f"x {text}", control=True).tolist()


def test_a_vocabulary_that_merges_into_a_control_token_cannot_do_so(tmp_path: Path) -> None:
    vocab = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4}
    model = {"type": "BPE", "vocab": vocab, "merges": [["<", "s"], ["<s", ">"]]}
    data = {"model": model, "added_tokens": [{"id": 4, "content": "<s>", "special": True}]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", **data}))
    tokenizer = tokenizer_of_json(path, {})
    assert tokenizer.encode("<s><s>").tolist() == [0, 1, 2, 0, 1, 2]
    assert tokenizer.encode("<s>", control=True).tolist() == [4]


@pytest.mark.parametrize("kind", ALL_KEYS)
def test_byte_table(kind: str) -> None:
    tokenizer = tokenizer_of_gguf(ALL_KEYS[kind])
    table = tokenizer.vocabulary.token_bytes
    assert len(table) == len(ALL_KEYS[kind]["tokens"])
    for token in tokenizer.added:
        assert table[token.id] == (special(token.text) if token.control else token.text.encode())
    if kind == "bert":
        return  # lower-cases and drops accents: the bytes of a text aren't those of its ids
    pieces = ALL_KEYS[kind]["model"] == "llama"
    for text in TEXTS:
        written = b"".join(table[i] for i in tokenizer.encode(text).tolist())
        prefix = " " if kind == "llama" and text else ""
        assert written == (prefix + text.replace("\u2581", " ") if pieces else text).encode()


def test_byte_fallback_table() -> None:
    table = tokenizer_of_gguf(piece_keys()).vocabulary.token_bytes
    assert table[3:259] == [bytes([b]) if b < 0xFE else b"\xc0" for b in range(256)]


def test_bos_and_eos() -> None:
    keys = dict(piece_keys())
    assert tokenizer_of_gguf(keys).encode("a", add_special=True)[0] == 1
    assert tokenizer_of_gguf({**keys, "add_bos_token": False}).encode("a", add_special=True)[0] != 1
    both = tokenizer_of_gguf({**keys, "add_eos_token": True}).encode("<s>a", control=True, add_special=True).tolist()
    assert both.count(1) == 1 and both[-1] == 2
    assert tokenizer_of_gguf(keys).encode("", add_special=True).tolist() == [1]
    llama3 = tokenizer_of_gguf(byte_level_keys("llama-bpe"))
    assert llama3.encode("a", add_special=True)[0] == 0
    assert tokenizer_of_gguf(byte_level_keys("smollm")).encode("a", add_special=True)[0] != 0


def test_end_ids_are_all_that_end_a_turn() -> None:
    tokenizer = tokenizer_of_gguf(byte_level_keys("smollm"))
    assert tokenizer.vocabulary.end_ids == (2, 0, 1)


def test_decode() -> None:
    tokenizer = tokenizer_of_gguf(piece_keys())
    ids = tokenizer.encode("Hello <s> é").tolist()
    assert tokenizer.decode(ids) == "Hello <s> é"
    assert tokenizer.decode([1, *ids, 2]) == "Hello <s> é"
    assert tokenizer.decode([1, *ids], skip_special=False).startswith("<s>")


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=40), st.integers(0, 40))
def test_offsets(text: str, position: int) -> None:
    tokenizer = tokenizer_of_gguf(byte_level_keys("smollm"))
    ids = tokenizer.encode(text).tolist()
    n = tokenizer.n_ids_before(text, position)
    before = b"".join(tokenizer.vocabulary.token_bytes[i] for i in ids[:n])
    assert len(before) <= len(text[:position].encode())


FAULTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no tokens": ({"model": "gpt2"}, InvalidModel, "tokens"),
    "types": ({**byte_level_keys("gpt-2"), "token_type": [1]}, InvalidModel, "token_type"),
    "scores": ({**piece_keys(), "scores": [1.0]}, InvalidModel, "scores"),
    "pre": ({**byte_level_keys("gpt-2"), "pre": "klingon"}, UnsupportedModel, "klingon"),
    "model": ({**byte_level_keys("gpt-2"), "model": "rwkv"}, UnsupportedModel, "rwkv"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    keys, error, words = FAULTS[name]
    with pytest.raises(error, match=words):
        tokenizer_of_gguf(keys)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model": 1}', '{"model": {}}', '{"model": {"type": "BPE"}}', "[" * 5000]
)
def test_faulty_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(InvalidModel, match=r"tokenizer\.json"):
        tokenizer_of_json(path, {})


def test_a_vocabulary_ends_with_its_last_id_that_writes_something(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": []}}')
    vocabulary = tokenizer_of_json(path, {}, suppressed=(0, 9)).vocabulary
    assert vocabulary.token_bytes == [b"a", b"", b"b"]
    assert vocabulary.never_sampled == (0, 1), "suppressed, and writes nothing"
    keys = {"model": "gpt2", "tokens": ["a", "<u0>", "b", "<end>", "<u1>"], "token_type": [1, 5, 1, 3, 5]}
    tokenizer = tokenizer_of_gguf({**keys, "merges": ["a b"], "suppress_tokens": [2]})
    assert [bool(piece) for piece in tokenizer.vocabulary.token_bytes] == [True, False, True, True]
    assert tokenizer.vocabulary.never_sampled == (1, 2)
    assert tokenizer.encode("<u1>a").max() < tokenizer.vocabulary.size, "no text is encoded as an unused id"
