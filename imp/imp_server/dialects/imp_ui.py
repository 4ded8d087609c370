"""What the page at / is made of: its files, and Markdown as elements."""

from __future__ import annotations

from imp_server.core import InvalidRequest, NotSupported, UnknownUrl
from imp_server.dialects.handler import BytesReply, Call, JsonReply, Reply, handler
from imp_server.ui.files import POLICY, page_files

MOST_BYTES = 65_536


@handler
async def asset(call: Call) -> Reply:
    return page_file(call, call.path["file"])


def page_file(call: Call, name: str) -> Reply:
    """Asked for anew each time, so that nobody has files of two versions. Raises UnknownUrl."""
    found = page_files().get(name) if call.services.config.server.ui else None
    if found is None:
        raise UnknownUrl(
            f"the page has no file {name[:64]!r}" if call.services.config.server.ui else "no page: --no-ui"
        )
    headers = {"etag": found.etag, "cache-control": "no-cache", "x-content-type-options": "nosniff"}
    if found.etag in (tag.strip() for tag in call.headers.get("if-none-match", "").split(",")):
        return BytesReply(b"", "", 304, headers)
    if found.media.startswith("text/html"):
        headers["content-security-policy"] = POLICY
    return BytesReply(found.content, found.media, headers=headers)


@handler
async def render(call: Call) -> Reply:
    if not call.services.config.server.ui:
        raise NotSupported("this server was started without its page (server.ui)")
    blocks: list[str] = call.body["blocks"]
    if sum(len(block.encode("utf-8", "replace")) for block in blocks) > MOST_BYTES:
        raise InvalidRequest(f"blocks hold more than {MOST_BYTES} bytes: send fewer", param="blocks")
    nodes = await call.services.rendered(blocks, call.client)
    return JsonReply({"blocks": [None] * len(blocks) if nodes is None else nodes, "ended": nodes is None})
