"""Which names a browser may call this server by.

A page of a stranger can let its own name resolve to 127.0.0.1 and then ask a local server as if that were its own
(DNS rebinding): the browser takes both for one site, and sends the page's name in the Host header.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence

from imp_server.config.serving import ServerSettings
from imp_server.core import Forbidden

_LONGEST_SHOWN = 100
_PATHS = ("unix:", "/")


class HostCheck:
    """On where the server has no key and listens on loopback addresses only: there it trusts whoever reaches it."""

    def __init__(self, server: ServerSettings, *, has_keys: bool) -> None:
        addresses = [host for host in server.host or ("127.0.0.1",) if not host.startswith(_PATHS)]
        allowed = [_bare(name) for name in server.allowed_hosts]
        self._takes_any = "*" in allowed
        self.is_on = not has_keys and bool(addresses) and all(map(is_loopback, addresses)) and not self._takes_any
        own = _bare(socket.gethostname())
        self._names = {"localhost", own, own.partition(".")[0], *(n for n in allowed if not n.startswith((".", "*.")))}
        self._endings = (".localhost", *(name.removeprefix("*") for name in allowed if name.startswith((".", "*."))))

    def check(self, hosts: Iterable[str], *, always: bool = False) -> None:
        """`hosts`: the request's Host headers; programs that send none aren't browsers. `always`: whatever the server
        listens on. Raises Forbidden."""
        if not (self.is_on or (always and not self._takes_any)):
            return
        for host in hosts:
            name = _bare(host)
            if name and name not in self._names and not name.endswith(self._endings) and not _is_address(name):
                shown = "".join(c if " " < c <= "~" else "." for c in name[:_LONGEST_SHOWN])
                raise Forbidden(
                    f"this server isn't known as {shown}: its own users call it localhost; "
                    f"if the name is right, start it with --allowed-hosts {shown}"
                )


def host_headers(headers: Iterable[tuple[bytes, bytes]]) -> Sequence[str]:
    return [value.decode("latin-1") for name, value in headers if name.lower() == b"host"]


def _bare(host: str) -> str:
    """Without port, brackets and the root's dot, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.partition(":")
    return (name if not port or port.isdecimal() else host).removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """`host` as --host has it."""
    return _bare(host) == "localhost" or (_is_address(_bare(host)) and ipaddress.ip_address(_bare(host)).is_loopback)
