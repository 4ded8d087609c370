"""WebSocket framing: the websockets library as uvicorn drives it, with bounds on what a message may be made of."""

from __future__ import annotations

import time
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from imp_server.api.admission.addresses import UNIX
from imp_server.api.admission.body_memory import BodyMemory, Charge
from imp_server.api.admission.connections import Connections, Stage
from imp_server.core import ImpError

FREE_FRAMES = 1024
_BYTES_PER_FRAME = 512
"""Of messages in more frames than that: a frame takes memory, also an empty one."""
IN_FLIGHT = "imp.in_flight"
"""True in the scope of a connection while a response is being made on it."""
_LONGEST_REASON = 120
_TOO_BIG, _TRY_AGAIN_LATER = 1009, 1013


class ImpWebSocketProtocol(WebSocketsSansIOProtocol):
    """Owns the message that is being received, and pays for its memory. Text and binary ones are both bytes here."""

    _connections: Connections | None = None
    _charge: Charge | None = None
    peer = UNIX
    _since_s = 0.0
    _n_told = 0
    """Bytes of messages handed to the transport; their framing isn't counted."""
    _n_framed = 0
    """Bytes in `frames`."""

    def join(self, connections: Connections, bodies: BodyMemory, peer: str) -> None:
        """Takes a place in the table of connections until it is lost."""
        self._connections, self.peer, self._since_s = connections, peer, time.monotonic()
        self._charge = bodies.charge()
        connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connections is not None:
            self._connections.remove(self)
        if self._charge is not None:
            self._charge.close()
        super().connection_lost(exc)

    def stage(self) -> tuple[Stage, float]:
        """Never idle: how long it may be, and how many there are, is bounded by its own knobs."""
        is_partial = self._charge is not None and self._charge.n_bytes > 0
        return ("message" if is_partial else "answer"), self._since_s

    def n_unsent(self) -> tuple[int, int]:
        n_unsent = self.transport.get_write_buffer_size()
        return n_unsent, self._n_told - n_unsent

    def end_late_head(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._since_s = time.monotonic()
        super().data_received(data)
        if self._charge is not None and not self.close_sent:
            self._pay(self._charge)

    def _pay(self, charge: Charge) -> None:
        """For what is held of a message that isn't whole: frames, and the one that is being received."""
        n_held = self._n_framed + len(self.conn.reader.buffer)
        try:
            charge.add(max(0, n_held - charge.n_bytes))
            charge.give_back(charge.n_bytes - n_held)
        except ImpError as error:
            charge.close()
            self.frames = []
            self.conn.fail(_TRY_AGAIN_LATER, error.message[:_LONGEST_REASON])
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        self._n_framed = 0
        super().send_receive_event_to_app()

    def handle_text(self, event: Frame) -> None:
        self.handle_bytes(event)  # whether it is UTF-8 is seen where it is read, which isn't on the event loop

    def handle_bytes(self, event: Frame) -> None:
        self._n_framed = len(event.data)
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._n_framed += len(event.data)
        n_frames = len(self.frames)
        if n_frames and n_frames % FREE_FRAMES == 0 and self._n_framed < _BYTES_PER_FRAME * n_frames:
            self.frames = []
            self.conn.fail(_TOO_BIG, "the message is in too many frames")
            self.handle_parser_exception()
        elif not self.close_sent:
            super().handle_cont(event)

    async def send(self, message: Any) -> None:
        await super().send(message)
        self._n_told += len(message.get("text") or message.get("body") or "")
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # with a refusal; uvicorn would call it missing

    def shutdown(self) -> None:
        """A response that is being made is finished first; then its connection is closed by whoever makes it."""
        if not self.handshake_complete or not self.scope.get(IN_FLIGHT):
            super().shutdown()
