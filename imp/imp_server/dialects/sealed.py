"""`encrypted_content`: opaque to clients, not a secret from them. The server keeps no copy of the text."""

from __future__ import annotations

import base64
import binascii
from typing import Literal

Kind = Literal["reasoning", "compaction"]


def seal(kind: Kind, text: str) -> str:
    return _prefix(kind) + base64.urlsafe_b64encode(text.encode()).decode()


def unseal(kind: Kind, sealed: str) -> str | None:
    """None for content of another kind or sealed by another server."""
    if not sealed.startswith(_prefix(kind)):
        return None
    try:
        return base64.urlsafe_b64decode(sealed.removeprefix(_prefix(kind))).decode()
    except (binascii.Error, ValueError):
        return None


def _prefix(kind: Kind) -> str:
    return f"imp-{kind}-1."
