"""Which requests may share what the server remembers: prefixes by scope, sessions and transcripts by owner."""

from __future__ import annotations

import hashlib

import msgspec

from imp_server.core import CacheIntent, CacheMarks


def cache_marks(cache: CacheIntent, pin_until: int, hour_until: int = 0, *, isolate_keys: bool) -> CacheMarks:
    """What the engine is told. `isolate_keys`: requests of different owners share no blocks."""
    session_id = None if cache.session_id is None else session_name(cache.owner, cache.session_id)
    return CacheMarks(pin_until, session_id, _scope(cache, isolate_keys=isolate_keys), hour_until)


def session_name(owner: str, session_id: str) -> str:
    """How the engine knows a session: two owners may call theirs the same."""
    return f"{owner}/{session_id}" if owner else session_id


def transcript_scope(cache: CacheIntent) -> bytes:
    """Requests of one scope find each other's answers again; at most 64 bytes."""
    return _digest(cache.salt, cache.owner).encode() if cache.salt or cache.owner else b""


def _scope(cache: CacheIntent, *, isolate_keys: bool) -> str:
    owner = cache.owner if isolate_keys else ""
    return _digest(cache.salt, owner) if cache.salt or owner else ""


def _digest(salt: str, owner: str) -> str:
    return hashlib.blake2b(msgspec.json.encode((salt, owner)), digest_size=31, person=b"imp scope").hexdigest()
