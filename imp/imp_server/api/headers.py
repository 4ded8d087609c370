"""Request ids and CORS: what every response carries, whatever it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlsplit

from imp_server.api.admission.addresses import parsed
from imp_server.config.serving import ServerSettings
from imp_server.dialects.ids import new_id

_MAX_ID = 128


def request_id_of(headers: Mapping[str, str]) -> str:
    """The client's own id of its request, made fit to be shown, or a new one."""
    sent = headers.get("x-request-id", "")
    return sanitised_id(sent) if sent else new_id("req_")


def sanitised_id(value: str) -> str:
    """Printable ASCII, other bytes as dots; longer than 128 characters: cut and marked with dots."""
    clean = "".join(c if " " <= c <= "~" else "." for c in value)
    return clean[:_MAX_ID] + "..." if len(clean) > _MAX_ID else clean


MOST_POINTERS, _LONGEST_POINTER = 16, 128


def listed(pointers: Sequence[str]) -> str:
    """JSON pointers with names that a client chose, as a header: percent-encoded, bounded in number and length."""
    shown = [_shortened(pointer) for pointer in pointers[:MOST_POINTERS]]
    return ", ".join([*shown, *(("...",) if len(pointers) > MOST_POINTERS else ())])


def _shortened(pointer: str) -> str:
    value = ""
    for character in pointer:
        written = quote(character, safe="/~")
        if len(value) + len(written) > _LONGEST_POINTER:
            break
        value += written
    return value


PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}
"""Of every page: it runs no script, loads nothing of others, and is shown in no page of others."""


_LOCAL = "localhost"


def _is_loopback(origin: str) -> bool:
    """An origin of this machine, whatever its port."""
    try:
        parts = urlsplit(origin)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or host == _LOCAL:
        return host == _LOCAL and parts.scheme in ("http", "https")
    address = parsed(host)
    return address is not None and address.is_loopback


class Cors:
    """Which origins a browser may call from. Immutable; without any there are no CORS headers at all.

    * is for everybody, and not for what changes the server; localhost is for every page of this machine.
    """

    def __init__(self, knobs: ServerSettings) -> None:
        self.allows_any = "*" in knobs.cors_origins
        self._origins = frozenset(knobs.cors_origins)
        self._methods, self._headers = ", ".join(knobs.cors_methods), ", ".join(knobs.cors_headers)
        self._credentials = knobs.cors_credentials
        self.status = 200 if knobs.habits == "llama-server" else 204
        """Of an answer to OPTIONS."""

    def allows(self, origin: str, *, listed_only: bool = False) -> bool:
        is_listed = origin in self._origins - {"*", _LOCAL} or (_LOCAL in self._origins and _is_loopback(origin))
        return is_listed or (self.allows_any and not listed_only)

    def headers(self, origin: str, methods: str, asked: str, *, listed_only: bool = False) -> dict[str, str]:
        """`asked`: the preflight's access-control-request-headers, echoed because SDKs send many x-stainless-*."""
        if not self._origins:
            return {}
        is_listed = self.allows(origin, listed_only=True)
        # a browser takes no * together with credentials
        with_credentials = self._credentials == "on" or (is_listed and self._credentials == "listed")
        is_echoed = is_listed or (with_credentials and bool(origin))
        out: dict[str, str] = {} if self._origins == {"*"} and not with_credentials else {"vary": "Origin"}
        if is_listed or self.allows(origin, listed_only=listed_only):
            out["access-control-allow-origin"] = origin if is_echoed else "*"
            if with_credentials:
                out["access-control-allow-credentials"] = "true"
            out["access-control-allow-methods"] = self._methods or methods
            out["access-control-allow-headers"] = self._headers or asked or "Authorization, Content-Type, x-api-key"
            out["access-control-expose-headers"] = (
                "x-request-id, request-id, retry-after, x-imp-ignored, x-imp-extra-properties, x-imp-ignored-fields"
            )
            out["access-control-max-age"] = "600"
        return out
