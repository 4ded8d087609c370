"""The vocabulary as bytes: what every token id writes. Shared by the walker, the grammar and the detokeniser."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property

from imp_server.core import special

_UNSAFE = bytes.maketrans(b"\xfe\xff", b"\xc0\xc0")


class Vocabulary:
    """Immutable byte table of one tokenizer.

    `token_bytes[id]` are marked bytes (core.special): an ordinary token's own bytes, a special token's
    text between 0xFF and 0xFE, b"" for unused and padding ids.
    """

    def __init__(
        self,
        pieces: Sequence[bytes | None],
        special_texts: dict[int, str],
        *,
        end_ids: Sequence[int] = (),
        bos_id: int | None = None,
        suppressed: Sequence[int] = (),
    ) -> None:
        """`pieces[id]`: the raw bytes of an ordinary token, None for an id that writes nothing.

        `suppressed`: ids that the model must never choose.
        """
        self.size = len(pieces)
        self.special_texts = dict(special_texts)
        self.end_ids = tuple(end_ids)
        self.bos_id = bos_id
        self.suppressed = tuple(suppressed)
        self.token_bytes: list[bytes] = [
            special(special_texts[i]) if i in special_texts else (piece or b"").translate(_UNSAFE)
            for i, piece in enumerate(pieces)
        ]

    @cached_property
    def never_sampled(self) -> tuple[int, ...]:
        """Ids that no row may choose or name: the suppressed ones and those that write nothing."""
        silent = {i for i, piece in enumerate(self.token_bytes) if not piece}
        return tuple(sorted(silent | {i for i in self.suppressed if 0 <= i < self.size}))

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_texts

    def plain_bytes(self, token_id: int) -> bytes:
        """What the token shows when it is named: a special token's text without its marks."""
        text = self.special_texts.get(token_id)
        return self.token_bytes[token_id] if text is None else text.encode()

    def special_id(self, text: str) -> int | None:
        """The id of the special token with this text."""
        return self._special_ids.get(text)

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        return {text: i for i, text in self.special_texts.items()}

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.token_bytes), default=1) or 1

    @cached_property
    def digest(self) -> str:
        """Identity of the byte table; key of everything cached per vocabulary."""
        h = hashlib.blake2b(digest_size=16)
        for piece in self.token_bytes:
            h.update(len(piece).to_bytes(4, "little"))
            h.update(piece)
        h.update(repr((self.end_ids, self.bos_id)).encode())
        return h.hexdigest()


def n_used(pieces: Sequence[bytes | None], special_texts: Mapping[int, str], *kept: int | None) -> int:
    """How many ids there are up to the last that writes something, is special or is among `kept`.

    What follows pads the vocabulary to a round number: rows of the model that nobody trained.
    """
    wanted = {*special_texts, *(i for i in kept if i is not None)}
    return next((i + 1 for i in range(len(pieces) - 1, -1, -1) if pieces[i] or i in wanted), 0)
