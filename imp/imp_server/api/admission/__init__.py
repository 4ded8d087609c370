"""Who gets in, and with how much: connections, requests per address, bodies in memory, places at the gate, and prompt
tokens that wait.

The order for a request: draining, rate limit, key, gate. Each question has one owner here; `Admission` is all of them.
"""

from __future__ import annotations

from imp_server.api.admission.addresses import Proxies
from imp_server.api.admission.body_memory import BodyMemory
from imp_server.api.admission.connections import Connections
from imp_server.api.admission.gate import Gate
from imp_server.api.admission.queued_tokens import QueuedTokens
from imp_server.api.admission.rates import RateLimit
from imp_server.api.returned_memory import ReturnedMemory
from imp_server.config.serving import ServerSettings


class Admission:
    """Owner of all that is limited before a request is read. Used from one event loop."""

    def __init__(self, server: ServerSettings) -> None:
        """Raises ConfigError for a proxy that is neither an address nor a network."""
        self.proxies = Proxies(server.trusted_proxy)
        self.rates = RateLimit(server.rate_limit)
        self.gate = Gate(server.max_concurrent)
        self.queued = QueuedTokens(server.max_queued_tokens)
        self.bodies = BodyMemory(server.max_body_memory_mib * 2**20)
        self.connections = Connections(server, self.proxies)
        self.returned_memory = ReturnedMemory()
        self.log = self.connections.log
