"""Every kind of byte-level BPE against the steps that the families' tokenizer.json state, through both kinds of file.

The patterns are written down here a second time, as the files have them; TEXTS are what tokenizers get wrong.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from imp_server.vocab.from_gguf import tokenizer_of_gguf
from imp_server.vocab.from_json import tokenizer_of_json
from imp_server.vocab.pre_kinds import PRE_KINDS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.vocab.adversarial import TEXTS, byte_level_keys

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Tekken's."""
SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = CASED.replace(r"\p{M}]+|[^", rf"\p{{M}}]+{SHORT_FORMS}|[^").replace(
    r"\p{M}]*|\p{N}|", rf"\p{{M}}]*{SHORT_FORMS}|\p{{N}}{{1,3}}|"
)
KIMI = r"[\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
SEED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
DIGITS = "digits"
"""A step of its own: each digit by itself."""
GPT2 = "gpt-2"
"""The pattern that the byte-level step has built in."""
PUBLISHED: dict[str, tuple[str, ...]] = {
    "llama-bpe": (LLAMA3,),
    "falcon3": (LLAMA3,),
    "dbrx": (LLAMA3,),  # OLMo 2 and 3
    "smaug-bpe": (LLAMA3,),  # SmolLM 3
    "glm4": (LLAMA3,),
    "qwen2": (QWEN,),
    "hunyuan": (QWEN,),
    "gpt-4o": (O200K,),  # gpt-oss, Phi 4
    "llama4": (O200K,),
    "minimax-m2": (O200K,),
    "tekken": (CASED,),
    "kimi-k2": (KIMI,),
    "cohere2moe": (r"\d{1,3}(?=(?:\d{3})*\b)", O200K),
    "deepseek-v3": DEEPSEEK3,
    "hunyuan-dense": DEEPSEEK3,
    "seed-coder": (SEED,),
    "bailingmoe2": (BAILING,),
    "command-r": (DIGITS, GPT2),
    "starcoder": (DIGITS, GPT2),
    "refact": (DIGITS, GPT2),  # Granite
    "exaone4": (GPT2,),
    "gpt-2": (GPT2,),
}


def step(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == DIGITS:
        return pre_tokenizers.Digits(individual_digits=True)
    if pattern == GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Split(Regex(pattern), "isolated")


@lru_cache
def published(pre: str) -> Tokenizer:
    """The library's own, as a tokenizer.json of the family has it."""
    keys = byte_level_keys(pre)
    ids = {token: i for i, token in enumerate(keys["tokens"])}
    merges = [tuple(line.split(" ")) for line in keys["merges"]]
    library = Tokenizer(models.BPE(ids, merges, ignore_merges=PRE_KINDS[pre].whole_words))
    steps = [step(pattern) for pattern in PUBLISHED[pre]]
    if PUBLISHED[pre][-1] != GPT2:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    library.decoder = decoders.ByteLevel()
    if PRE_KINDS[pre].nfc:
        library.normalizer = normalizers.NFC()
    specials = [AddedToken(token, special=True, normalized=False) for token in keys["tokens"][:3]]
    library.add_tokens([*specials, *(AddedToken(token, normalized=False) for token in keys["tokens"][-2:])])
    return library


@pytest.mark.parametrize("pre", PUBLISHED)
def test_both_kinds_of_file_give_the_family_s_ids(pre: str, tmp_path: Path) -> None:
    library = published(pre)
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    from_json, from_gguf = tokenizer_of_json(path, {}), tokenizer_of_gguf(byte_level_keys(pre))
    for text in TEXTS:
        wanted = library.encode(text, add_special_tokens=False).ids
        assert from_json.encode(text, control=True).tolist() == wanted, text
        assert from_gguf.encode(text, control=True).tolist() == wanted, text


def test_the_kinds_of_the_converted_models_are_all_here() -> None:
    from tests.models.family_cases import CASES

    kinds = {case.pre for case in CASES.values() if case.has_gguf and case.pre}
    assert kinds - PUBLISHED.keys() == {
        "deepseek-llm",  # its letters are a list, written down once
        "gemma4",  # no BPE of bytes
    }
