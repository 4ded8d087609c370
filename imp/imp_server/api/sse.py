"""Server-sent events on the wire: one write per event, never an empty chunk, comments while nothing happens."""

from __future__ import annotations

from imp_server.dialects.base import SseFrame

KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
MEDIA_TYPE = b"text/event-stream"


def encode_frame(frame: SseFrame) -> bytes:
    """The bytes of one event, with the blank line that ends it. `data` is one line: JSON without newlines."""
    if frame.event is None:
        return b"data: %b\n\n" % frame.data
    return b"event: %b\ndata: %b\n\n" % (frame.event.encode(), frame.data)
