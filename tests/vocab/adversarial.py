"""Texts that tokenizers get wrong, and small vocabularies of every kind."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from imp_server.vocab.from_gguf import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, pre_tokenizer_of
from imp_server.vocab.pre_kinds import PRE_KINDS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.toy import SENTENCES

TEXTS = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "\n",
    "\n\n\n",
    "\r\n\r\n x",
    "\t\tx  \n  y",
    "Hello, world!",
    "I'm you're WE'LL can't 'S 'T ''s",
    "1 12 123 1234 12345 1,234,567.89 ١٢٣ ４５６ ½ Ⅷ ²",
    "don't   stop   ...   (really)!!",
    "naïve café Ångström ﬁ ß İstanbul ŒUVRE",
    "e\u0301 n\u0303 \u1100\u1161\u11a8 ก็ นี้",
    "日本語のテキスト。漢字、かな、カナ",
    "한국어 텍스트 조선말",
    "العربية مِثَال עִבְרִית हिन्दी বাংলা",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 ☃️ 🏳️‍🌈",
    "\u200b\u200d\ufeff\u2028\u2029\xa0\u3000x",
    "\x00\x01\x7f\x80\x9f",
    "\ufffd \U0010ffff \ue000 \U000e0001",
    "def f(x):\n    return x**2 + 1  # ok\n\n\nclass A(B):\n\tpass\n",
    "https://example.org/a?b=c&d=%20#e foo@bar.baz C:\\x\\y",
    '{"key": [1, 2.5e-3, null, true], "s": "\\u00e9\\n"}',
    "<div class='x'>&amp;</div>",
    "camelCaseWORDSlike XMLHttpRequest iPhone McDonald ǅ",
    "a" * 300,
    " " * 77 + "x",
    "ab" * 40 + "!" * 33,
    "=====>>>>~~~~^^^^||||$$$$++++<<<<",
    "\u2581 \u2581\u2581x Ġ Ċ <0x0A> ## ##a",
    "<|im_end|> <|im_start|>user\n</s> <s>",
    "x<|im_end|>y <|im_end|> z <think>hm</think>",
    SENTENCES,
]


@lru_cache
def byte_level_keys(pre: str, n_tokens: int = 900) -> dict[str, Any]:
    """Trained with the kind's own way of cutting words."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizer_of(PRE_KINDS[pre])
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    library.train_from_iterator([SENTENCES, *TEXTS] * 2, trainer)
    model = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*tokens, "<think>", "</think>"],
        "token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3) + [USER_DEFINED] * 2,
        "merges": [" ".join(pair) for pair in model["merges"]],
        "eos_token_id": 2,
        "bos_token_id": 0,
    }


@lru_cache
def piece_keys(add_space_prefix: bool = True) -> dict[str, Any]:
    """A SentencePiece-like vocabulary with byte fallback; scores fall with the id."""
    library = Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, limit_alphabet=120)
    library.train_from_iterator([SENTENCES] * 3, trainer)
    vocab = library.get_vocab()
    pieces = [t for t in sorted(vocab, key=vocab.__getitem__) if t != "<unk>"]
    start = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    return {
        "model": "llama",
        "tokens": [*start, *pieces],
        "token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "scores": [0.0] * len(start) + [-float(i) for i in range(len(pieces))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": add_space_prefix,
    }


@lru_cache
def word_piece_vocab() -> tuple[str, ...]:
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    library.train_from_iterator([SENTENCES] * 3, trainer)
    vocab = library.get_vocab()
    return tuple(sorted(vocab, key=vocab.__getitem__))


def word_piece_keys() -> dict[str, Any]:
    """As converters write it: words begin with a lower bar, continuations stand bare."""
    tokens = word_piece_vocab()
    return {
        "model": "bert",
        "tokens": [_spelled(t) for t in tokens],
        "token_type": [CONTROL if _is_special(t) else NORMAL for t in tokens],
        "unknown_token_id": 1,
        "cls_token_id": 2,
        "seperator_token_id": 3,
    }


def _is_special(token: str) -> bool:
    return token.startswith("[") and len(token) > 2


def _spelled(token: str) -> str:
    return token if _is_special(token) else token[2:] if token.startswith("##") else "\u2581" + token
