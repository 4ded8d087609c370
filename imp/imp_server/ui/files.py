"""The files of the page, as they are sent. Plain ES modules and CSS: what lies in `static/` is what a browser gets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).resolve().parent / "static"
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""The page runs its own modules and nothing else, and talks to its own server only."""


class PageFile(NamedTuple):
    content: bytes
    media: str
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """By name. Read once: a server never mixes two versions of itself."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _MEDIA:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:32]
            found[path.name] = PageFile(content, _MEDIA[path.suffix], f'"{digest}"')
    return found
