"""GPT-2's spelling of bytes as printable characters, which byte-level BPE vocabularies are written in.

Bytes that print in Latin-1 stand for themselves, the others take the code points from 256 on, in order.
"""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [b for b in range(256) if b not in set(_PRINTABLE)]

CHAR_OF_BYTE: tuple[str, ...] = tuple(
    chr(256 + _OTHERS.index(b)) if b in _OTHERS else chr(b) for b in range(256)
)  # fmt: skip
BYTE_OF_CHAR: dict[str, int] = {c: b for b, c in enumerate(CHAR_OF_BYTE)}

# A 1:1 map to Latin-1 makes decoding one C-level call per token instead of a loop over its characters.
_TO_LATIN1 = {ord(c): b for c, b in BYTE_OF_CHAR.items()}
_TO_LATIN1 |= dict.fromkeys(_OTHERS, 65535)  # a raw control character is no spelling of a byte


def to_bytes(token: str) -> bytes:
    """The bytes `token` spells; its own UTF-8 if a character is outside the alphabet (as HF decodes)."""
    try:
        return token.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()
