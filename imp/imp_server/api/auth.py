"""API keys: Bearer or x-api-key on every route that isn't public."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

from imp_server.core import ConfigError, Unauthorized
from imp_server.core.owner import NOBODY, Owner, owner_of


class KeyRing:
    """The keys in force. Immutable."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = {key.encode(): owner_of(key) for key in keys if key}

    @property
    def is_open(self) -> bool:
        """No keys: everybody may ask."""
        return not self._keys

    def check(self, headers: Mapping[str, str]) -> Owner:
        """Whose request it is. Raises Unauthorized.

        Every key is compared in full, whether an earlier one matched or not.
        """
        if self.is_open:
            return NOBODY
        sent = [key.encode("utf-8", "surrogateescape") for key in sent_keys(headers)]
        owner: Owner | None = None
        for candidate in sent:
            for key, whose in self._keys.items():
                owner = whose if hmac.compare_digest(candidate, key) else owner
        if not sent:
            raise Unauthorized("Missing API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'")
        if owner is None:
            raise Unauthorized("Invalid API key")
        return owner


def sent_keys(headers: Mapping[str, str]) -> list[str]:
    keys = []
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        keys.append(token.strip())
    if headers.get("x-api-key", "").strip():
        keys.append(headers["x-api-key"].strip())
    return keys


def keys_from_file(path: str) -> tuple[str, ...]:
    """One key per line; # starts a comment. Raises ConfigError for a file that can't be read or has no key."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the API key file {path}: {error}") from None
    keys = tuple(key for line in lines if (key := line.partition("#")[0].strip()))
    if not keys:
        raise ConfigError(f"the API key file {path} holds no key; add one per line or leave the option out")
    return keys
