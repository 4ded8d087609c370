"""Routes of llama-server's that are never served: a shell, files and a fetcher don't belong in a model server."""

from __future__ import annotations

from imp_server.core import FeatureDisabled
from imp_server.dialects.handler import Call, Reply, handler

_TOOLS = "this server runs no tools: a shell and files don't belong in a model server; run them where the client is"
_PROXY = "this server fetches nothing for pages: a fetcher doesn't belong in a model server"


@handler
async def list_tools(_call: Call) -> Reply:
    raise FeatureDisabled(_TOOLS)


@handler
async def run_tool(_call: Call) -> Reply:
    raise FeatureDisabled(_TOOLS)


@handler
async def fetch(_call: Call) -> Reply:
    raise FeatureDisabled(_PROXY)


@handler
async def send(_call: Call) -> Reply:
    raise FeatureDisabled(_PROXY)
