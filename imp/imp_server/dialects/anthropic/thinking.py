"""The signature of a thinking block: proof that its text came from this server unchanged, not a secret."""

from __future__ import annotations

from imp_server.core import InvalidRequest

_OFFSET, _PRIME = 1469598103934665603, 1099511628211
_PREFIX = "imp_sig_"


class Signer:
    """The signature of a text that comes in pieces: 0.2 us a byte, spread over the stream."""

    def __init__(self) -> None:
        self._digest = _OFFSET

    def feed(self, text: str) -> None:
        digest = self._digest
        for byte in text.encode():
            digest = (digest ^ byte) * _PRIME & 0xFFFF_FFFF_FFFF_FFFF
        self._digest = digest

    def signature(self) -> str:
        return f"{_PREFIX}{self._digest:016x}"


def signature(thinking: str) -> str:
    """FNV-1a-64 of the UTF-8 text. The offset is the one that earlier imp servers used, so old histories stay valid."""
    signer = Signer()
    signer.feed(thinking)
    return signer.signature()


def is_kept(thinking: str, signed: str | None, path: str) -> bool:
    """Whether the block goes into the conversation: unless another server signed it.

    Raises InvalidRequest for a signature of ours that belongs to another text.
    """
    if not signed:
        return True
    if not signed.startswith(_PREFIX):
        return False
    if signed != signature(thinking):
        raise InvalidRequest(
            "the signature does not match its thinking; send thinking blocks back unchanged or leave them out",
            param=f"{path}.signature",
            code="invalid_signature",
        )
    return True
