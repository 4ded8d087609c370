"""Unigram vocabularies (SentencePiece's kind with a likelihood for each piece) as the library takes them.

A text is blanks made bars, a bar put in front, and then the likeliest way to cut it into pieces.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Sequence
from typing import Any

BLANK = "\u2581"
_SILENT = " \ufdd0"
"""A blank, which no normalised text of most files has, and for the others a code point that stands for nothing."""
Piece = tuple[str, float]


def unigram_json(
    pieces: Sequence[Piece],
    unknown: int,
    *,
    silent: Collection[int],
    byte_ids: Collection[int],
    charsmap: bytes,
    squeezes_blanks: bool,
    puts_blank_first: bool,
) -> str:
    """A tokenizer.json. `silent`: ids of pieces that no text is cut into; `byte_ids`: of single bytes, into which
    what is unknown falls apart; `charsmap`: SentencePiece's normalisation.
    """
    steps: list[dict[str, Any]] = []
    if charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if squeezes_blanks:
        steps += [_replaced({"Regex": " {2,}"}, " "), _replaced({"Regex": r"\A | \z"}, "")]
    if puts_blank_first:
        steps.append({"type": "Prepend", "prepend": BLANK})
    steps.append(_replaced({"String": " "}, BLANK))
    vocab = silenced(pieces, silent)
    # The library finds single bytes by their texts, which a text may spell, too: any other way to cut it is likelier.
    farthest = 10 * min((score for _, score in vocab), default=0.0) - 10
    vocab = [(text, farthest) if i in byte_ids else (text, score) for i, (text, score) in enumerate(vocab)]
    model = {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": bool(byte_ids)}
    return json.dumps({"normalizer": {"type": "Sequence", "normalizers": steps}, "model": model})


def silenced(pieces: Sequence[Piece], silent: Collection[int]) -> list[Piece]:
    """Those of `silent` get texts that no normalised text has. Their scores mustn't be the lowest, of which the library
    makes that of the unknown.
    """
    lowest = min((score for i, (_, score) in enumerate(pieces) if i not in silent), default=0.0)
    return [(f"{_SILENT}{i}", lowest) if i in silent else piece for i, piece in enumerate(pieces)]


def _replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}
