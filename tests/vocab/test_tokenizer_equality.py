"""Ids equal those of transformers (or of the library set up as the model's tokenizer.json has it) on nasty texts."""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.vocab.from_gguf import CONTROL, NORMAL, tokenizer_of_gguf
from imp_server.vocab.from_json import tokenizer_of_json
from imp_server.vocab.pre_kinds import PRE_KINDS
from imp_server.vocab.tokenizer import Tokenizer
from imp_server.weights.header import read_header
from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from tests.real_model import smollm2
from tests.vocab.adversarial import TEXTS, byte_level_keys, piece_keys, word_piece_keys, word_piece_vocab

# Kinds that transformers has a pattern for.
KNOWN_TO_TRANSFORMERS = ["llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "gpt-2", "dbrx"]
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=60)


def oracle_of(keys: dict[str, Any], architecture: str = "llama") -> LibraryTokenizer:
    renames = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    return convert_gguf_tokenizer(architecture, {renames.get(k, k): v for k, v in keys.items()})[0]


@lru_cache
def byte_level_pair(pre: str) -> tuple[Tokenizer, LibraryTokenizer]:
    keys = byte_level_keys(pre)
    oracle = oracle_of(keys)
    # As these models' tokenizer.json has it; transformers' way from GGUF leaves it out.
    oracle.model.ignore_merges = PRE_KINDS[pre].whole_words
    return tokenizer_of_gguf(keys), oracle


@lru_cache
def piece_pair(add_space_prefix: bool, architecture: str) -> tuple[Tokenizer, LibraryTokenizer]:
    keys = piece_keys(add_space_prefix)
    return tokenizer_of_gguf(keys, architecture), oracle_of(keys, architecture)


def same(pair: tuple[Tokenizer, LibraryTokenizer], text: str) -> None:
    ours, oracle = pair
    assert ours.encode(text, control=True).tolist() == oracle.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("pre", KNOWN_TO_TRANSFORMERS)
def test_byte_level_kinds(pre: str) -> None:
    for text in TEXTS:
        same(byte_level_pair(pre), unicodedata.normalize("NFC", text))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["llama-bpe", "gpt-4o", "tekken", "gpt-2"]), ANY_TEXT)
def test_byte_level_on_any_text(pre: str, text: str) -> None:
    same(byte_level_pair(pre), text)


def test_qwen_normalises() -> None:
    ours, _ = byte_level_pair("qwen2")
    assert ours.encode("e\u0301").tolist() == ours.encode("é").tolist()


# transformers takes phi3's SentencePiece to put the blank in front as the original library does, and has
# gemma's take ids for scores.
@pytest.mark.parametrize(("prefix", "architecture"), [(True, "phi3"), (False, "gemma2")])
def test_sentence_piece(prefix: bool, architecture: str) -> None:
    for text in TEXTS:
        same(piece_pair(prefix, architecture), text)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([(True, "phi3"), (False, "gemma2")]), ANY_TEXT)
def test_sentence_piece_on_any_text(which: tuple[bool, str], text: str) -> None:
    same(piece_pair(*which), text)


def test_word_piece() -> None:
    from transformers import BertTokenizer

    vocab = {t: i for i, t in enumerate(word_piece_vocab())}
    theirs, ours = BertTokenizer(vocab=vocab), tokenizer_of_gguf(word_piece_keys())
    for text in [*TEXTS, "[MASK] a [SEP]"]:
        expected = theirs.encode(text)
        assert ours.encode(text, control=True, add_special=True).tolist() == expected, text


def smollm2_json(header: Any) -> LibraryTokenizer:
    """SmolLM2's tokenizer.json, rebuilt from its published parts: digits apart, then GPT-2's pattern."""
    tokens, merges = list(header.tokenizer["tokens"]), list(header.tokenizer["merges"])
    library = LibraryTokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    control = [t for t, kind in zip(tokens, header.tokenizer["token_type"]) if kind == 3]
    library.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return library


@lru_cache
def smollm2_pair() -> tuple[Tokenizer, LibraryTokenizer]:
    header = read_header(smollm2())
    return tokenizer_of_gguf(header.tokenizer, header.architecture), smollm2_json(header)


def test_smollm2() -> None:
    for text in TEXTS:
        same(smollm2_pair(), text)


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT)
def test_smollm2_on_any_text(text: str) -> None:
    same(smollm2_pair(), text)


def test_smollm2_byte_table_is_what_transformers_decodes() -> None:
    ours, _ = smollm2_pair()
    keys = dict(read_header(smollm2()).tokenizer)
    decoder = oracle_of({**keys, "token_type": keys["token_type"].tolist()}).decode
    for i in range(0, ours.vocabulary.size, 7):
        mine = ours.vocabulary.plain_bytes(i)
        assert mine.decode("utf-8", "replace") == decoder([i], skip_special_tokens=False)


# The kinds without an oracle in transformers: the steps of the tokenizer.json that each name stands for.
DEEPSEEK_V3 = [
    pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
    pre_tokenizers.Split(Regex("[一-龥\u3040-ゟ゠-ヿ]+"), "isolated"),
    pre_tokenizers.Split(
        Regex(
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
        ),
        "isolated",
    ),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
]
DEEPSEEK_CODER = [
    pre_tokenizers.Split(Regex("[\r\n]"), "isolated"),
    pre_tokenizers.Split(Regex(r"\s?\p{L}+"), "isolated"),
    pre_tokenizers.Split(Regex(r"\s?\p{P}+"), "isolated"),
    pre_tokenizers.Split(Regex("[一-龥ࠀ-一가-\ud7ff]+"), "isolated"),
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
]
STARCODER = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]


@pytest.mark.parametrize(
    ("pre", "steps"), [("deepseek-v3", DEEPSEEK_V3), ("deepseek-coder", DEEPSEEK_CODER), ("starcoder", STARCODER)]
)
def test_published_steps(pre: str, steps: list[Any]) -> None:
    ours, oracle = tokenizer_of_gguf(byte_level_keys(pre)), oracle_of(byte_level_keys(pre))
    oracle.pre_tokenizer = pre_tokenizers.Sequence(steps)
    for text in TEXTS:
        same((ours, oracle), text)


@pytest.mark.parametrize("pre", sorted(PRE_KINDS))
def test_every_kind_keeps_every_byte(pre: str) -> None:
    ours = tokenizer_of_gguf({**byte_level_keys("gpt-2"), "pre": pre})
    for text in TEXTS:
        text = unicodedata.normalize("NFC", text)
        assert ours.decode(ours.encode(text).tolist()) == text


JSON_KINDS = ["llama-bpe", "phi3", "gemma2", "bert"]


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_tokenizer_json_and_gguf_agree(kind: str, tmp_path: Path) -> None:
    """The same tokenizer in both formats: same ids, same byte table, same specials."""
    path = tmp_path / "tokenizer.json"
    if kind == "llama-bpe":
        ours, oracle = byte_level_pair(kind)
    elif kind == "bert":
        from transformers import BertTokenizer

        vocab = {t: i for i, t in enumerate(word_piece_vocab())}
        ours, oracle = tokenizer_of_gguf(word_piece_keys()), BertTokenizer(vocab=vocab).backend_tokenizer
    else:
        ours, oracle = piece_pair(kind == "phi3", kind)
    oracle.save(str(path))
    theirs = tokenizer_of_json(path, {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    for text in TEXTS:
        assert theirs.encode(text, control=True).tolist() == ours.encode(text, control=True).tolist(), text
        assert theirs.encode(text).tolist() == ours.encode(text).tolist(), text
    n = ours.vocabulary.size
    assert [theirs.vocabulary.plain_bytes(i) for i in range(n)] == [ours.vocabulary.plain_bytes(i) for i in range(n)]
    assert theirs.vocabulary.special_texts.items() >= ours.vocabulary.special_texts.items()
    if kind == "bert":
        assert theirs.encode("a", add_special=True).tolist() == ours.encode("a", add_special=True).tolist()


# llama.cpp's own ids, made by analysis/pre_kind_ids.py: an oracle for the kinds that no published tokenizer.json names.
LLAMACPP: dict[str, Any] = json.loads((Path(__file__).parent / "llamacpp_ids.json").read_text())


@pytest.mark.parametrize("pre", sorted(LLAMACPP["ids"]))
def test_what_llamacpp_makes_of_it(pre: str) -> None:
    tokens = LLAMACPP["tokens"]
    types = [CONTROL] + [NORMAL] * (len(tokens) - 1)
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": LLAMACPP["merges"]}
    ours = tokenizer_of_gguf({**keys, "bos_token_id": 0, "eos_token_id": 0})
    for text, expected in zip(LLAMACPP["texts"], LLAMACPP["ids"][pre], strict=True):
        assert ours.encode(text).tolist() == expected, text


def test_llamacpp_tells_the_kinds_apart() -> None:
    different = {json.dumps(ids) for ids in LLAMACPP["ids"].values()}
    assert len(different) >= 12, "texts on which all kinds agree would prove nothing"
    assert LLAMACPP["ids"]["default"] != LLAMACPP["ids"]["gpt-2"] != LLAMACPP["ids"]["deepseek-llm"]
