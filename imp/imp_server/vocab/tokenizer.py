"""Text -> ids of one model; owner of its encoder and of the rule which tokens a text may spell.

Special tokens never reach the library: it is built without them, and `split` cuts them out of text first.
So text encodes to a special id only where the caller says so, whatever it contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from imp_server.core import special
from imp_server.vocab.encoder import Encoder, Ids
from imp_server.vocab.table import Vocabulary


class AddedToken(NamedTuple):
    """A token matched whole in text before anything else. `control`: only where a template may write it."""

    id: int
    text: str
    control: bool
    strip_left: bool = False
    """Swallows the whitespace before it."""
    strip_right: bool = False


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A stretch of a text: literal text (`token` is None) or one added token. `start`, `end` in characters."""

    text: str
    start: int
    end: int
    token: AddedToken | None = None


class Tokenizer:
    """Immutable and thread-safe."""

    def __init__(
        self,
        encoder: Encoder,
        vocabulary: Vocabulary,
        added: Sequence[AddedToken],
        *,
        add_bos: bool = False,
        add_eos: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        strip_leading_space: bool = False,
        gap_ids: tuple[int, int, int] | None = None,
        is_foreign: bool = False,
    ) -> None:
        """`gap_ids`: of prefix, suffix and middle, where the file says which they are.

        `is_foreign`: its steps are a stranger's, and may never end on some text (known_steps.py).
        """
        self.is_foreign = is_foreign
        self.vocabulary = vocabulary
        self.added = tuple(added)
        self.bos_id, self.eos_id = bos_id, eos_id
        self.add_bos = add_bos and bos_id is not None
        self.add_eos = add_eos and eos_id is not None
        self.strip_leading_space = strip_leading_space
        """Encoding puts a space before the text; decoding a whole text takes it away again."""
        self.gap_ids = gap_ids
        self._encoder = encoder
        self._by_text = {t.text: t for t in self.added}
        self._all = _matcher(self._by_text)
        self._plain = _matcher(t.text for t in self.added if not t.control)
        control = [t.id for t in self.added if t.control and vocabulary.is_special(t.id)]
        self._forbidden = np.zeros(vocabulary.size, dtype=bool)
        self._forbidden[[i for i in control if i < vocabulary.size]] = True
        if encoder.unknown_id is not None:
            self._forbidden[encoder.unknown_id] = False

    def split(self, text: str, *, control: bool) -> list[TextPiece]:
        """Cut out the added tokens, leftmost and longest first; control tokens only if `control`."""
        matcher = self._all if control else self._plain
        pieces: list[TextPiece] = []
        at = 0
        if matcher is not None:
            for match in matcher.finditer(text):
                token = self._by_text[match.group()]
                literal = text[at : match.start()]
                if token.strip_left:
                    literal = literal.rstrip()
                if literal:
                    pieces.append(TextPiece(literal, at, at + len(literal)))
                pieces.append(TextPiece(token.text, match.start(), match.end(), token))
                at = match.end()
                if token.strip_right:
                    at += len(text) - at - len(text[at:].lstrip())
        if at < len(text):
            pieces.append(TextPiece(text[at:], at, len(text)))
        return pieces

    def marked(self, text: str) -> bytes:
        """`text` in marked bytes, with the control tokens that it spells."""
        pieces = self.split(text, control=True)
        control = self.vocabulary.special_texts
        return b"".join(
            special(p.text) if p.token is not None and p.token.id in control else p.text.encode() for p in pieces
        )

    def encode_pieces(self, pieces: Sequence[TextPiece]) -> list[Ids]:
        """Ids of each piece, in order."""
        literal = [p.text for p in pieces if p.token is None]
        encoded = iter(self._encoder.encode(literal))
        return [
            self._checked(p.text, next(encoded)) if p.token is None else np.array([p.token.id], dtype=np.int32)
            for p in pieces
        ]

    def encode(self, text: str, *, control: bool = False, add_special: bool = False) -> Ids:
        """Ids of `text`. `control`: it may spell control tokens. `add_special`: BOS and EOS as the file says."""
        parts = self.encode_pieces(self.split(text, control=control))
        if add_special:
            parts = self.with_bos_eos(parts)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def with_bos_eos(self, parts: list[Ids]) -> list[Ids]:
        """Never doubles a BOS that the text has already spelled."""
        first = next((int(p[0]) for p in parts if len(p)), None)
        if self.add_bos and first != self.bos_id:
            parts = [np.array([self.bos_id], dtype=np.int32), *parts]
        return [*parts, np.array([self.eos_id], dtype=np.int32)] if self.add_eos else parts

    def n_ids_before(self, text: str, position: int) -> int:
        """How many ids of literal `text` end at or before character `position`."""
        return self._encoder.n_ids_before(text, position)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence; bytes that form no character are shown as U+FFFD."""
        table, texts = self.vocabulary.token_bytes, self.vocabulary.special_texts
        out = bytearray()
        for i in ids:
            if not 0 <= i < len(table):
                continue
            if i not in texts:
                out += table[i]
            elif not skip_special:
                out += texts[i].encode()
        text = out.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strip_leading_space else text

    def _checked(self, text: str, ids: Ids) -> Ids:
        if not self._forbidden[ids].any():
            return ids
        # The library's own vocabulary holds a control token that this literal text spells (a merge or a
        # whole-word hit produced it): cut the text inside that token and encode the halves.
        start, end = self._encoder.offsets(text)[int(np.flatnonzero(self._forbidden[ids])[0])]
        if end - start < 2:
            return ids[~self._forbidden[ids]]
        pieces = (text[: start + 1], text[start + 1 :])
        return np.concatenate([self._checked(*half) for half in zip(pieces, self._encoder.encode(pieces), strict=True)])


def _matcher(texts: Iterable[str]) -> re.Pattern[str] | None:
    # Alternation takes the first that fits: longest first makes it the longest.
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
