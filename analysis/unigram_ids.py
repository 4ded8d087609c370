"""How SentencePiece cuts adversarial texts with unigram vocabularies, as data for a test.

    python analysis/unigram_ids.py > tests/vocab/sentencepiece_ids.json

It needs sentencepiece and protobuf. The vocabularies are learnt from the very texts; the normalisation is a short list
of rules, compiled as the long ones of published models are.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as proto

TEXTS: list[str] = json.loads((Path(__file__).parents[1] / "tests/vocab/llamacpp_ids.json").read_text())["texts"]
MORE = [
    "",
    " ",
    "   ",
    " a",
    "a ",
    "  a  b  ",
    "\n",
    "a\n\nb",
    "<unk> </s> <s> <0x41>",
    "the " * 50,
    "x" * 300,
    "\u1680\u0378",
]
RULES = {"ﬁ": "fi", "Å": "A", "½": "1/2", "４": "4", "\n": " ", "\t": " ", "\u200b": "", "\u3000": " ", "é": "e\u0301"}
"""What a character becomes."""
KINDS: dict[str, dict[str, Any]] = {
    "as in T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "with bytes": {"pad_id": 3, "byte_fallback": True, "character_coverage": 0.98},
    "blanks as they are": {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "character_coverage": 0.985},
}


def trained(rules: Path, options: dict[str, Any]) -> bytes:
    model = io.BytesIO()
    words = [word for text in TEXTS for word in text.split()]
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXTS, *words, *(f"the {word}s of" for word in words)]),
        model_writer=model,
        model_type="unigram",
        vocab_size=1200,
        hard_vocab_limit=False,
        normalization_rule_tsv=str(rules),
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def as_keys(model: bytes) -> dict[str, Any]:
    """As GGUF's converter writes them; the types have the same numbers."""
    parsed = proto.ModelProto.FromString(model)
    normaliser = parsed.normalizer_spec
    return {
        "tokens": [piece.piece for piece in parsed.pieces],
        "scores": [piece.score for piece in parsed.pieces],
        "token_type": [piece.type for piece in parsed.pieces],
        "precompiled_charsmap": base64.b64encode(normaliser.precompiled_charsmap).decode(),
        "add_space_prefix": normaliser.add_dummy_prefix,
        "remove_extra_whitespaces": normaliser.remove_extra_whitespaces,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as base:
        rules = Path(base) / "rules.tsv"
        lines = [
            "\t".join(" ".join(f"{ord(c):X}" for c in side) for side in (before, after))
            for before, after in RULES.items()
        ]
        rules.write_text("\n".join(lines) + "\n")
        found = {}
        for name, options in KINDS.items():
            model = trained(rules, options)
            library = spm.SentencePieceProcessor(model_proto=model)
            found[name] = {"keys": as_keys(model), "ids": [library.encode(text) for text in [*TEXTS, *MORE]]}
    print(json.dumps({"texts": [*TEXTS, *MORE], "kinds": found}, ensure_ascii=True))


if __name__ == "__main__":
    main()
