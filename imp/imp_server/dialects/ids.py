"""Unguessable ids on the wire."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    """`prefix` and 24 hexadecimal digits (96 random bits)."""
    return f"{prefix}{secrets.token_hex(12)}"
