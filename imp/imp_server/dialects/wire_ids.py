"""Ids that clients see. They name stored data without any other secret, so they must not be guessable."""

from __future__ import annotations

import secrets


def wire_id(prefix: str) -> str:
    """`prefix`, "imp" and 96 random bits in hexadecimal."""
    return f"{prefix}imp{secrets.token_hex(12)}"
