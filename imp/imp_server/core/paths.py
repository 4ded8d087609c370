"""Paths as text: file names are bytes, and messages, JSON and terminals want text."""

from __future__ import annotations

import os


def readable(path: str | os.PathLike[str]) -> str:
    """`path` as text that can be encoded: bytes that aren't UTF-8 as `\\xNN`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
