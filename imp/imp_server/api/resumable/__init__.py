"""Streams that survive their client: their bytes, who may read them, and what ends them.

A streamed POST that names its conversation reserves the name, becomes a session once the engine has accepted it, and is
from then on nobody's connection: its own client is the first of its readers.
"""

from imp_server.api.resumable.opening import Resumable, relayed
from imp_server.api.resumable.sessions import StreamSessions

__all__ = ["Resumable", "StreamSessions", "relayed"]
