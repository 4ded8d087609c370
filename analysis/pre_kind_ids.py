"""How llama.cpp cuts and merges adversarial texts under each kind of byte-level BPE, as data for a test.

    python analysis/pre_kind_ids.py > tests/vocab/llamacpp_ids.json

It needs llama-cpp-python, gguf and tokenizers. The vocabulary is learnt from the very texts without any cutting, so
that it would merge across every border: where a kind cuts otherwise, the ids differ. Left out, because llama.cpp
knowingly departs there from the tokenizer.json of the models: gpt-4o and tekken (it tells case in ASCII alone), blanks
outside ASCII inside ranges (it sees a vertical tab), and texts that aren't NFC (it doesn't normalise).
"""

from __future__ import annotations

import json
import random
import tempfile
import unicodedata
from pathlib import Path

import llama_cpp
from gguf import GGUFWriter
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

KINDS = [
    *("default", "gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "qwen35", "hunyuan", "deepseek-v3", "deepseek-coder"),
    *("deepseek-llm", "falcon", "seed-coder", "bailingmoe", "bloom", "viking"),
]
DIGITS = ["1", "12", "123", "1234", "12345678", "a1b22c333d4444", "$12.50", "x=100;y=2000", "1.2.3.4", "１２３４"]
WRITTEN = [
    "Hello, world! I'm you're WE'LL can't 'S 'T ''s",
    "1 12 123 1234 12345 1,234,567.89 ١٢٣ ½ Ⅷ ²",
    "don't   stop   ...   (really)!!  \n\n\n x\r\n\ty ",
    "naïve café Ångström ﬁ ß İstanbul ŒUVRE e\u0301 n\u0303",
    "日本語のテキスト。漢字、かな、カナ 한국어 텍스트",
    "العربية مِثَال עִבְרִית हिन्दी বাংলা ก็ นี้",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 ☃️ 🏳️‍🌈",
    "\u200b\u200d\ufeff\xa0x \x01\x7f\x80\x9f",
    "def f(x):\n    return x**2 + 1  # ok\n\n\nclass A(B):\n\tpass\n",
    "https://example.org/a?b=c&d=%20#e foo@bar.baz C:\\x\\y",
    "camelCaseWORDSlike XMLHttpRequest iPhone McDonald ǅ",
    "=====>>>>~~~~^^^^||||$$$$++++<<<< " + " " * 20 + "x",
]


def texts() -> list[str]:
    """The written ones, numbers, and random ones out of the scripts whose classes the patterns name."""
    chance = random.Random(7)
    blocks = [(32, 127), (0xA0, 0x250), (0x370, 0x400), (0x3001, 0x3100), (0x4E00, 0x4E20)]
    pool = [chr(code) for start, end in blocks for code in range(start, end)]
    pool += ["가", "각", "’", "–", "！", "，", "١", "०", "😀", "\u0301", "\n", "\r", "\t", *" " * 30]
    made = ["".join(chance.choice(pool) for _ in range(chance.randrange(8, 40))) for _ in range(24)]
    return [unicodedata.normalize("NFC", text) for text in [*WRITTEN, *DIGITS, *made]]


def vocabulary(asked: list[str]) -> tuple[list[str], list[str]]:
    """Tokens in the byte-level spelling, and merges as GGUF files spell them."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator([*asked, *DIGITS * 9], trainer)
    model = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return ["<|endoftext|>", *tokens], [" ".join(pair) for pair in model["merges"]]


def write_file(tokens: list[str], merges: list[str], kind: str, path: Path) -> None:
    """A GGUF file of nothing but a vocabulary and the few sizes that a file must have."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    asked = texts()
    tokens, merges = vocabulary(asked)
    ids: dict[str, list[list[int]]] = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vocabulary.gguf"
            write_file(tokens, merges, kind, path)
            llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
            ids[kind] = [llama.tokenize(text.encode(), add_bos=False, special=False) for text in asked]
    lines = [f'"{kind}":{json.dumps(rows, separators=(",", ":"))}' for kind, rows in ids.items()]
    head = {"version": llama_cpp.__version__, "tokens": tokens, "merges": merges, "texts": asked}
    print("{" + ",\n".join(f'"{name}":{json.dumps(value)}' for name, value in head.items()) + ",")
    print('"ids":{\n' + ",\n".join(lines) + "}}")


main()
