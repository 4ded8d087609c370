"""Tiny text models for tests: no file, no weights, the real code.

`byte_model()` writes one token per byte (id = byte) and has its control tokens from id 256 on, like the
scripted engine's `byte_vocabulary`. `bpe_model()` has merges, so tokens and words don't coincide.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from imp_server.config import Config
from imp_server.text.model import TextModel
from imp_server.vocab.byte_alphabet import CHAR_OF_BYTE
from imp_server.vocab.from_gguf import CONTROL, NORMAL, USER_DEFINED, tokenizer_of_gguf
from imp_server.vocab.tokenizer import Tokenizer
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

CONTROL_TOKENS = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING_CHATML = CHATML.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
)
"""Like Qwen3: the model writes <think> itself unless thinking is switched off."""
OPEN_THINKING_CHATML = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""Like DeepSeek-R1: the prompt opens the thinking."""

SENTENCES = """The quick brown fox jumps over the lazy dog. I'm sure they've said: "It's 2024, isn't it?"
def main(argument):\n    return argument + 1\n\n\tif x < y && z >= 10: print('hello world')\n
Größe, Straße, façade, naïve; 你好，世界。 こんにちは世界 Привет, мир! مرحبا بالعالم שלום 안녕하세요 세계 नमस्ते
   several   spaces\t\ttabs\n\n\nnewlines  \r\n and 12345678 numbers 3.14159 1,000,000 😀👍🏽🇩🇪 https://example.org/?q=1&r=2
"""


def byte_keys(control: tuple[str, ...] = CONTROL_TOKENS, added: tuple[str, ...] = ()) -> dict[str, Any]:
    """`tokenizer.ggml.*` keys of a byte vocabulary; `added` are user-defined tokens."""
    tokens = [*CHAR_OF_BYTE, *control, *added]
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [NORMAL] * 256 + [CONTROL] * len(control) + [USER_DEFINED] * len(added),
        "merges": [],
        "eos_token_id": 256,
    }


@lru_cache
def byte_tokenizer(control: tuple[str, ...] = CONTROL_TOKENS, added: tuple[str, ...] = ()) -> Tokenizer:
    return tokenizer_of_gguf(byte_keys(control, added))


def bpe_library(n_tokens: int) -> LibraryTokenizer:
    """Trained on SENTENCES."""
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(CONTROL_TOKENS),
        show_progress=False,
    )
    library.train_from_iterator([SENTENCES] * 3, trainer)
    return library


@lru_cache
def bpe_keys(n_tokens: int = 600, pre: str = "smollm") -> Mapping[str, Any]:
    library = bpe_library(n_tokens)
    vocab = library.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    ranks = _merges(library)
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [CONTROL if t in CONTROL_TOKENS else NORMAL for t in tokens],
        "merges": ranks,
        "eos_token_id": vocab["<|im_end|>"],
        "bos_token_id": vocab["<|im_start|>"],
        "add_bos_token": False,
    }


def _merges(library: LibraryTokenizer) -> list[str]:
    import json

    return [" ".join(pair) for pair in json.loads(library.to_str())["model"]["merges"]]


def byte_model(
    template: str = CHATML,
    *,
    control: tuple[str, ...] = CONTROL_TOKENS,
    added: tuple[str, ...] = (),
    config: Config | None = None,
    context_length: int = 4096,
    templates: Mapping[str, str] | None = None,
) -> TextModel:
    return TextModel(
        byte_tokenizer(control, added),
        templates or {"default": template},
        config or Config(),
        context_length=context_length,
    )


def bpe_model(template: str = CHATML, *, config: Config | None = None, context_length: int = 4096) -> TextModel:
    return TextModel(
        tokenizer_of_gguf(bpe_keys()), {"default": template}, config or Config(), context_length=context_length
    )
