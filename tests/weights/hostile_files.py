"""Strategies for model files of strangers: headers that claim more than there is, and values that no model has.

Each yields bytes; most are small, whatever they claim. What reads them must be done within `MOST_SECONDS`, hold at most
`most_bytes` at once, and either succeed or raise a UserFault.
"""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from imp_server.core import UserFault

from tests.weights.gguf_writer import gguf_bytes, text, typed

MOST_SECONDS = 2.0


def most_bytes(size: int) -> int:
    """For a file of `size` bytes."""
    return 32 * 2**20 + 64 * size


def judge(read: Callable[[], object], size: int) -> str:
    """What reading came to: `ok`, or the name of the fault. Raises whatever else it raises, and AssertionError."""
    tracemalloc.start()
    started = time.perf_counter()
    outcome, message = "ok", ""
    try:
        read()
    except UserFault as fault:
        outcome, message = type(fault).__name__, fault.message
    finally:
        took_s = time.perf_counter() - started
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert took_s < MOST_SECONDS, f"{took_s:.1f} s for {size} bytes"
    assert peak < most_bytes(size), f"{peak} bytes held for a file of {size}"
    assert len(message) < 2000, "a message is no copy of the file"
    return outcome


SIZES = st.sampled_from([0, 1, 2, 7, 2**8, 2**16, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
NAMES = st.one_of(
    st.sampled_from(
        [
            "general.architecture", "general.alignment", "split.count", "split.no", "llama.block_count",
            "llama.rope.scaling.factor", "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template",
        ]
    ),
    st.text(max_size=12),
)  # fmt: skip


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value)


@st.composite
def _values(draw: st.DrawFn) -> bytes:
    """A key's type and payload; one in two lies about its length."""
    kind = draw(st.sampled_from(["plain", "text", "array", "arrays in arrays", "unknown"]))
    if kind == "plain":
        return typed(
            draw(st.one_of(st.booleans(), st.integers(0, 2**32 - 1), st.floats(width=32), st.text(max_size=9)))
        )
    if kind == "text":
        return struct.pack("<I", 8) + _u64(draw(SIZES)) + draw(st.binary(max_size=40))
    if kind == "array":
        return struct.pack("<II", 9, draw(st.integers(0, 14))) + _u64(draw(SIZES)) + draw(st.binary(max_size=60))
    if kind == "arrays in arrays":
        return struct.pack("<I", 9) + (struct.pack("<I", 9) + _u64(1)) * draw(st.integers(1, 3000))
    return struct.pack("<I", draw(st.integers(13, 2**32 - 1))) + draw(st.binary(max_size=20))


@st.composite
def _tensors(draw: st.DrawFn) -> bytes:
    dims = draw(st.lists(SIZES, max_size=6))
    claimed = draw(st.sampled_from([len(dims), 2**31, 5]))
    head = text(draw(NAMES)) + struct.pack("<I", claimed) + b"".join(map(_u64, dims))
    return head + struct.pack("<I", draw(st.integers(0, 50))) + _u64(draw(SIZES))


@st.composite
def gguf_files(draw: st.DrawFn) -> bytes:
    """Any counts, lengths, types and offsets."""
    keys = [text(draw(NAMES)) + value for value in draw(st.lists(_values(), max_size=6))]
    tensors = draw(st.lists(_tensors(), max_size=4))
    n_tensors, n_keys = (draw(st.one_of(st.just(len(made)), SIZES)) for made in (tensors, keys))
    version = draw(st.sampled_from([3, 3, 3, 2, 1, 0x03000000]))
    head = b"GGUF" + struct.pack("<I", version) + _u64(n_tensors) + _u64(n_keys)
    return head + b"".join(keys) + b"".join(tensors) + draw(st.binary(max_size=64))


NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 64, 4096, 2**20, 2**31 - 1, 2**32 - 1]),
    st.sampled_from([0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf")]),
    st.booleans(),
    st.text(max_size=4),
    st.lists(st.integers(0, 2**32 - 1), max_size=4),
)
HYPERPARAMETERS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
    "rope.scaling.original_context_length", "attention.layer_norm_rms_epsilon", "expert_count", "expert_used_count",
    "vocab_size",
)  # fmt: skip
TOKENIZER_KEYS = ("tokens", "token_type", "scores", "merges", "model", "pre", "eos_token_id", "suppress_tokens")


@st.composite
def llama_files(draw: st.DrawFn) -> bytes:
    """A whole header of the family that we know, with tensors of no data and values that no model has."""
    sane: dict[str, Any] = {
        "block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32,
        "attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    odd = draw(st.dictionaries(st.sampled_from(HYPERPARAMETERS), NUMBERS, max_size=4))
    metadata = {"general.architecture": "llama", **{f"llama.{k}": v for k, v in {**sane, **odd}.items()}}
    tokenizer: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b"], "token_type": [1, 1]}
    tokenizer |= draw(st.dictionaries(st.sampled_from(TOKENIZER_KEYS), NUMBERS, max_size=2))
    metadata |= {f"tokenizer.ggml.{k}": v for k, v in tokenizer.items() if v != []}
    rows = draw(st.sampled_from([0, 1, 2, 3]))
    tensors = {"token_embd.weight": (0, (rows, 32), b"\0" * (128 * rows)), "output_norm.weight": (0, (32,), bytes(128))}
    return gguf_bytes({k: v for k, v in metadata.items() if v != []}, tensors if draw(st.booleans()) else {})


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=12,
)
TEXTS = st.sampled_from(
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"a": ' + "9" * 1_000_000 + "}",
        '{"a": 1e999999, "a": "\\ud800"}',
        '{"model": {"type": "BPE", "vocab": ' + "[" * 5000,
        "",
        "\ufeff{}",
    ]
)
"""What a reader of JSON may choke on."""


@st.composite
def safetensors_files(draw: st.DrawFn) -> bytes:
    shape = st.lists(SIZES, max_size=9)
    entry = st.fixed_dictionaries(
        {"dtype": st.sampled_from(["F32", "U8", "F8_E8M0", "Q9", 3]), "shape": st.one_of(shape, JSON)},
        optional={"data_offsets": st.one_of(st.lists(SIZES, min_size=2, max_size=2), JSON)},
    )
    header = json.dumps(draw(st.dictionaries(st.text(max_size=8), st.one_of(entry, JSON), max_size=5)))
    header = draw(st.one_of(st.just(header), TEXTS))
    raw = header.encode("utf-8", "surrogatepass")
    return _u64(draw(st.one_of(st.just(len(raw)), SIZES))) + raw + draw(st.binary(max_size=32))


IDS = st.one_of(st.integers(-2, 8), st.sampled_from([2**22, 2**22 + 1, 2**31, 2**32 - 1, 2**32, 2**64]))


@st.composite
def tokenizer_files(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["BPE", "WordPiece", "Unigram", "WordLevel", "Nonsense"]))
    vocab: Any = draw(st.one_of(st.dictionaries(st.text(max_size=3), IDS, max_size=6), JSON))
    model = {"type": kind, "vocab": vocab, "merges": draw(st.one_of(st.lists(st.text(max_size=5), max_size=4), JSON))}
    added = st.fixed_dictionaries({"id": IDS, "content": st.text(max_size=5)}, optional={"special": st.booleans()})
    steps = st.sampled_from(
        [
            None,
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            {"type": "Split", "pattern": {"Regex": "(a|a)*$"}, "behavior": "Isolated", "invert": False},
            {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
            {"type": "Sequence", "pretokenizers": [{"type": "Metaspace"}], "decoders": [], "processors": [3]},
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {}, 3]},
            {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 1000},
        ]
    )
    document = {
        "version": "1.0",
        "model": draw(st.one_of(st.just(model), JSON)),
        "added_tokens": draw(st.one_of(st.lists(added, max_size=4), JSON)),
        **{name: draw(steps) for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")},
    }
    whole = json.dumps(document).encode()
    return draw(st.one_of(st.just(whole), st.just(whole), TEXTS.map(lambda raw: raw.encode("utf-8", "surrogatepass"))))
