"""SentencePiece vocabularies list pieces with scores instead of merges; this recovers the merges."""

from __future__ import annotations

from collections.abc import Mapping


def merges_of_scores(vocab: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, best score of the result first.

    Pairs with equal scores: the one with the longer left part first, then the longer right part, then by ids
    (the order that converters to merge lists use).
    """
    ranked: list[tuple[float, str, str]] = []
    for piece in vocab:
        score = scores.get(piece)
        if score is None:
            continue
        pairs = [
            (piece[:cut], piece[cut:]) for cut in range(1, len(piece)) if piece[:cut] in vocab and piece[cut:] in vocab
        ]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        ranked += [(-score, left, right) for left, right in pairs]
    ranked.sort(key=lambda entry: (entry[0], -len(entry[1]), -len(entry[2])))
    return [(left, right) for _, left, right in ranked]
