"""Where a request comes from: its peer, or, behind a proxy that is trusted, the client that the proxy names."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from imp_server.core import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
UNIX = "unix"
"""The peer of a Unix socket, and its name as a trusted proxy."""
_MOST_HOPS = 16


class Proxies:
    """The peers whose X-Forwarded-For is believed. Immutable."""

    def __init__(self, names: Iterable[str]) -> None:
        names = tuple(names)
        self._unix = UNIX in names
        try:
            self._networks = [ipaddress.ip_network(name, strict=False) for name in names if name != UNIX]
        except ValueError as error:
            raise ConfigError(f"--trusted-proxy: {error}; give an address, a network or unix") from None

    def trusts(self, peer: str) -> bool:
        if peer == UNIX:
            return self._unix
        address = parsed(peer)
        return address is not None and any(address in network for network in self._networks)

    def client(self, peer: str, forwarded: str) -> str:
        """The address to count: of the names in `forwarded` the last that no trusted proxy has, or the peer itself.

        What stands before that name was written by somebody who isn't trusted.
        """
        if not forwarded or not self.trusts(peer):
            return peer
        client = peer
        for hop in reversed(forwarded[-1024:].split(",")[-_MOST_HOPS:]):
            address = parsed(hop.strip())
            if address is None:
                break
            client = str(address)
            if not self.trusts(client):
                break
        return client


def parsed(text: str) -> Address | None:
    """IPv4 addresses written as IPv6 are IPv4 addresses."""
    try:
        address = ipaddress.ip_address(text.removeprefix("[").partition("]")[0].partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def limited_as(client: str) -> str:
    """Whose limits apply to `client`: its address, of IPv6 the network of 64 bits; "" for those that have none."""
    address = parsed(client)
    if address is None or address.is_loopback:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
