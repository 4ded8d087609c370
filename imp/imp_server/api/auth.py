"""API keys: Bearer or x-api-key on every route that isn't public. Some may change the server, too."""

from __future__ import annotations

import hmac
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from imp_server.core import ConfigError, Forbidden, Unauthorized
from imp_server.core.owner import NOBODY, Caller, is_admin, owner_of

_log = logging.getLogger(__name__)
_LARGEST_FILE = 1 << 20
Stamp = tuple[int, int, int]
_FINE: Stamp = (-1, -1, -1)
"""Of no file."""


class KeyRing:
    """Owner of the keys in force. A key file is read anew when it has changed; while it can't be read, or holds no
    key, the keys that were read last stay in force."""

    def __init__(self, keys: Iterable[str] = (), *, admin: Iterable[str] = (), file: str = "") -> None:
        """`admin`: keys that may change the server. Raises ConfigError for a file that can't be used."""
        self._own = _known(keys)
        self._admin = _known(admin)
        self._file = file
        self._stamp = _stamp(file) if file else None
        """Of the file whose keys are in force."""
        self._wrong: Stamp | None = _FINE
        """Of the file that couldn't be used, as was told."""
        self._filed = _known(keys_from_file(file)) if file else {}
        self._all: dict[bytes, Caller] = {}
        self._put_together()

    @property
    def is_open(self) -> bool:
        """No keys: everybody may ask, and everything belongs to everybody."""
        return not (self._own or self._file)

    @property
    def has_admin(self) -> bool:
        return bool(self._admin)

    def check(self, headers: Mapping[str, str]) -> Caller:
        """Whose request it is. Raises Unauthorized.

        Every key is compared in full, whether an earlier one matched or not.
        """
        self._look_at_file()
        sent = [key.encode("utf-8", "surrogateescape") for key in sent_keys(headers)]
        caller: Caller | None = None
        for candidate in sent:
            for key, whose in self._all.items():
                caller = whose if hmac.compare_digest(candidate, key) else caller
        if self.is_open:
            return Caller(NOBODY, caller is not None and caller.is_admin)
        if not sent:
            raise Unauthorized("Missing API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'")
        if caller is None:
            raise Unauthorized("Invalid API key")
        return caller

    def may_outrank(self) -> bool:
        """Whether the priority of the request being answered counts against those of other keys, too."""
        return is_admin() or (self.is_open and not self.has_admin)

    def check_admin(self, headers: Mapping[str, str]) -> Caller:
        """As `check`, for what changes the server: an admin key where there is one. Raises Forbidden, too."""
        caller = self.check(headers)
        if not self.has_admin or caller.is_admin:
            return caller
        if not sent_keys(headers):
            raise Unauthorized("this changes the server: send an admin key as 'Authorization: Bearer KEY'")
        raise Forbidden("this changes the server, which takes an admin key (--admin-api-key)")

    def _look_at_file(self) -> None:
        stamp = _stamp(self._file) if self._file else None
        if stamp == self._stamp:
            return
        if stamp is None:
            self._complain(stamp, f"the API key file {self._file} isn't there")
            return
        try:
            filed = _known(keys_from_file(self._file))
        except ConfigError as error:  # it is read again with the next request: the reason may have gone by then
            self._complain(stamp, error.message)
            return
        self._stamp, self._wrong, self._filed = stamp, _FINE, filed
        _log.info("the API key file has changed: %d keys", len(self._filed))
        self._put_together()

    def _complain(self, stamp: Stamp | None, message: str) -> None:
        """Once for each state of the file."""
        if stamp != self._wrong:
            self._wrong = stamp
            _log.error("%s; the keys read before stay in force", message)

    def _put_together(self) -> None:
        keys = self._own | self._filed
        self._all = {key: Caller(owner_of(key.decode("utf-8", "surrogateescape"))) for key in keys}
        self._all |= {key: Caller(owner_of(key.decode("utf-8", "surrogateescape")), True) for key in self._admin}


def _known(keys: Iterable[str]) -> dict[bytes, None]:
    return {key.encode("utf-8", "surrogateescape"): None for key in keys if key}


def _stamp(path: str) -> Stamp | None:
    """What tells that a file is another one; None if it isn't there, or is a pipe, which is read but once."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if stat.S_ISREG(found.st_mode) else None


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
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
        lines = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the API key file {path}: {error}") from None
    if len(data) > _LARGEST_FILE:
        raise ConfigError(f"the API key file {path} is larger than {_LARGEST_FILE >> 20} MiB")
    keys = tuple(key for line in lines if (key := line.partition("#")[0].strip()))
    if not keys:
        raise ConfigError(f"the API key file {path} holds no key; add one per line or leave the option out")
    return keys
