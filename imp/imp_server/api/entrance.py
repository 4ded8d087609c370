"""Who may come in, asked of a request's head alone, and in an order that is promised: host, browser, draining, rate
limit, key, gate. Requests of all kinds pass here: those of an operation, unknown paths, and WebSocket handshakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from imp_server.api.admission.addresses import UNIX, parsed
from imp_server.api.headers import Cors
from imp_server.api.hosts import host_headers
from imp_server.api.predictions import IS_INSIDE
from imp_server.api.services import ServerServices
from imp_server.core import Draining, Forbidden
from imp_server.core.owner import Caller

Scope = Any
"""Of ASGI."""
Headers = Mapping[str, str]
_FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip", "via")
"""Headers of which each tells that a proxy has passed the request on."""


class WantedBody(Protocol):
    """What is asked for, as far as it matters here; as of an Operation."""

    @property
    def public(self) -> bool: ...
    @property
    def is_probe(self) -> bool: ...
    @property
    def is_inference(self) -> bool: ...
    @property
    def changes_server(self) -> bool: ...


class Anything(NamedTuple):
    """A path or a method that isn't there: strangers must not learn which are."""

    public: bool = False
    is_probe: bool = False
    is_inference: bool = False
    changes_server: bool = False


def enter(services: ServerServices, scope: Scope, headers: Headers, client: str, wanted: WantedBody) -> Caller:
    """Raises what keeps the request out. `client`: the address to count, behind proxies that are trusted."""
    if client != UNIX:
        services.hosts.check(host_headers(scope["headers"]), always=wanted.changes_server and services.keys.is_open)
    check_browser(headers, services.cors, changes_server=wanted.changes_server)
    if wanted.public:
        return Caller()
    if services.draining and IS_INSIDE not in scope:
        raise Draining("the server is shutting down", retry_after_s=5.0)
    if not wanted.is_probe:
        services.admission.rates.check(client)
    caller = services.keys.check_admin(headers) if wanted.changes_server else services.keys.check(headers)
    if wanted.changes_server and services.keys.is_open and not services.keys.has_admin and not is_local(scope, headers):
        raise Forbidden(
            "this changes the server, and without keys it takes that from its own machine only; "
            "start it with --admin-api-key or --api-key"
        )
    if wanted.is_inference:
        services.admission.gate.check()
    return caller


def is_local(scope: Scope, headers: Headers) -> bool:
    """From this machine, and not on behalf of somebody else."""
    if any(name in headers for name in _FORWARDED):
        return False
    peer = scope["client"][0] if scope.get("client") else UNIX
    address = parsed(peer)
    return peer == UNIX or (address is not None and address.is_loopback)


def _site(origin: str) -> str:
    """Host and port; "" for what is no URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def check_browser(headers: Headers, cors: Cors, *, changes_server: bool) -> None:
    """Keeps out what a page of another site has a browser send, replies to which the page may not even read.

    Programs send neither header. Raises Forbidden.
    """
    origin, listed_only = headers.get("origin"), changes_server
    if origin is not None:
        if _site(origin) == headers.get("host", "").lower() != "" or cors.allows(origin, listed_only=listed_only):
            return
    elif headers.get("sec-fetch-site", "") != "cross-site" or (cors.allows_any and not listed_only):
        return
    raise Forbidden("pages of another site may not ask this; allow theirs with --cors-origins")
