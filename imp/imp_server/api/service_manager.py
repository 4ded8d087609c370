"""Tells systemd that the server is ready, or that it stops: a datagram to NOTIFY_SOCKET (sd_notify(3))."""

from __future__ import annotations

import logging
import socket

from imp_server.config.environment import environment

READY, STOPPING = "READY=1", "STOPPING=1"
_log = logging.getLogger(__name__)


def tell_service_manager(state: str) -> None:
    """Nothing happens where nobody asked to be told; a socket that can't be reached is told in the log."""
    address = environment("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # a name in Linux' abstract space
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0)) as sender:
        sender.settimeout(1.0)
        try:
            sender.sendto(state.encode(), address)
        except OSError as error:
            _log.warning("the service manager can't be told (%s): %s", state, error.strerror or error)
