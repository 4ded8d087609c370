"""Request ids and CORS: what every response carries, whatever it answers."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_ID = 128


def sanitised_id(value: str) -> str:
    """Printable ASCII, other bytes as dots; longer than 128 characters: cut and marked with dots."""
    clean = "".join(c if " " <= c <= "~" else "." for c in value)
    return clean[:_MAX_ID] + "..." if len(clean) > _MAX_ID else clean


class Cors:
    """Which origins a browser may call from. Immutable; () = no CORS headers at all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origins)

    def headers(self, origin: str, methods: str, asked: str) -> dict[str, str]:
        """`asked`: the preflight's access-control-request-headers, echoed because SDKs send many x-stainless-*."""
        if not self._origins:
            return {}
        out: dict[str, str] = {} if self._any else {"vary": "Origin"}
        if self._any or origin in self._origins:
            out["access-control-allow-origin"] = "*" if self._any else origin
            out["access-control-allow-methods"] = methods
            out["access-control-allow-headers"] = asked or "Authorization, Content-Type, x-api-key"
            out["access-control-expose-headers"] = "x-request-id, request-id, retry-after"
            out["access-control-max-age"] = "600"
        return out
