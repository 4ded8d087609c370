"""Rendered text -> ids, with the ids of known replies where the conversation contains them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from imp_server.core import special
from imp_server.text.guard import Guard
from imp_server.text.transcripts import TextState, Transcripts, Written, hashed
from imp_server.vocab.encoder import Ids
from imp_server.vocab.tokenizer import TextPiece, Tokenizer


class PromptEncoder:
    """Immutable; the transcripts take care of themselves."""

    def __init__(self, tokenizer: Tokenizer, transcripts: Transcripts | None = None) -> None:
        self._tokenizer = tokenizer
        self._transcripts = transcripts

    def encode(self, text: str, guard: Guard, ends: Sequence[int], scope: bytes = b"") -> tuple[Written, list[int]]:
        """`text` is still guarded. Its ids, and how many of them lie before each of `ends` (characters).

        `scope`: whose transcripts may be used.
        """
        pieces = self._tokenizer.split(text, control=True)
        clean = [p if p.token is not None else TextPiece(guard.clean(p.text), p.start, p.end) for p in pieces]
        marked = [self._marked(piece) for piece in clean]
        places = [0, *accumulate(map(len, marked))]
        whole = b"".join(marked)
        known = self._transcripts.find(whole, self._may_end(clean, places), scope) if self._transcripts else None
        n_known = 0 if known is None else known.n_bytes
        rest = _rest(clean, places, n_known)
        state = hashed(whole, scope) if self._transcripts is not None else None
        written = self._joined(known, rest, whole, state)
        piece_ends = [piece.end for piece in pieces]
        offsets = []
        for end in ends:
            index = bisect_right(piece_ends, end)
            place = places[index]
            if index < len(pieces) and pieces[index].start < end and pieces[index].token is None:
                place += len(guard.clean(pieces[index].text[: end - pieces[index].start]).encode())
            offsets.append(self._ids_before(place, whole, places[index : index + 2], known, written))
        return written, offsets

    def _ids_before(
        self, place: int, whole: bytes, piece: Sequence[int], known: Written | None, written: Written
    ) -> int:
        """`piece`: where the piece that `place` lies in begins and ends, if there is one."""
        if known is not None and place <= known.n_bytes:
            return known.ids_before(place, self._tokenizer.vocabulary.token_bytes)
        start = piece[0] if known is None else max(piece[0], known.n_bytes)
        offset = written.offsets[bisect_right(written.places, start) - 1]
        if place > start:
            n_inside = len(whole[start:place].decode())
            offset += self._tokenizer.n_ids_before(whole[start : piece[1]].decode(), n_inside)
        return offset

    def _joined(
        self, known: Written | None, rest: Sequence[TextPiece], whole: bytes, state: TextState | None
    ) -> Written:
        parts = self._tokenizer.encode_pieces(rest)
        opening = [known.ids] if known is not None else self._opening(parts)
        places = [0 if known is None else known.n_bytes]
        offsets = [sum(map(len, opening))]
        for piece, part in zip(rest, parts, strict=True):
            places.append(places[-1] + len(self._marked(piece)))
            offsets.append(offsets[-1] + len(part))
        return Written(
            np.concatenate([np.zeros(0, np.int32), *opening, *parts]),
            len(whole),
            (*(known.places if known is not None else ()), *places),
            (*(known.offsets if known is not None else ()), *offsets),
            state,
        )

    def _opening(self, parts: list[Ids]) -> list[Ids]:
        """What the model wants before a text; never what it wants behind one, since a prompt is to be continued."""
        if not self._tokenizer.add_bos:
            return []
        opened = self._tokenizer.with_bos_eos(parts)
        return opened[:1] if len(opened) - self._tokenizer.add_eos > len(parts) else []

    def _marked(self, piece: TextPiece) -> bytes:
        is_special = piece.token is not None and self._tokenizer.vocabulary.is_special(piece.token.id)
        return special(piece.text) if is_special else piece.text.encode()

    def _may_end(self, pieces: Sequence[TextPiece], places: Sequence[int]) -> list[tuple[int, int]]:
        """Places where a message may end: before a token, and before the blanks that a template puts there."""
        found = []
        for index, piece in enumerate(pieces):
            last = places[index + 1]
            if index + 1 < len(pieces) and pieces[index + 1].token is None:
                continue
            # A tokenizer that opens literal text with a blank would add one behind the reply.
            blanks = piece.token is None and not self._tokenizer.strip_leading_space
            found.append((places[index] + len(piece.text.rstrip().encode()) if blanks else last, last))
        return found


def _rest(pieces: Sequence[TextPiece], places: Sequence[int], n_known: int) -> list[TextPiece]:
    """The pieces behind the first `n_known` bytes, the first of them cut."""
    rest = []
    for index, piece in enumerate(pieces):
        if places[index] >= n_known:
            rest.append(piece)
        elif places[index + 1] > n_known:
            text = piece.text.encode()[n_known - places[index] :].decode()
            rest.append(TextPiece(text, piece.end - len(text), piece.end))
    return rest
