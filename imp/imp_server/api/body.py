"""Reading a request body: media type, size, JSON that is really JSON. Every trap of it is handled here.

Refused with a 4xx: other media types, bodies over the cap (declared or streamed), invalid UTF-8, NaN and
Infinity, numbers beyond a double, lone surrogates, nesting beyond the limit, trailing text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from blacksheep import Request
from blacksheep.contents import ASGIContent
from blacksheep.exceptions import MessageAborted

from imp_server.api.big_json import decode_in_pieces
from imp_server.core import InvalidJson, PayloadTooLarge, UnsupportedMediaType


class ClientGone(Exception):
    """The connection closed before the body was complete: there is nobody to answer."""


def check_media_type(headers: Mapping[str, str], accepted: Sequence[str]) -> None:
    sent = headers.get("content-type", "")
    media, _, rest = sent.partition(";")
    media = media.strip().lower()
    wanted = " or ".join(accepted)
    if media not in accepted and not (media.endswith("+json") and "application/json" in accepted):
        what = f"content-type {sent[:100]!r}" if sent else "no content-type"
        raise UnsupportedMediaType(f"the request has {what}; send content-type: {wanted}")
    charset = rest.lower().partition("charset=")[2].strip().strip('"')
    if charset and charset not in ("utf-8", "utf8", "us-ascii", "ascii"):
        raise UnsupportedMediaType(f"the request is in charset {charset[:40]!r}; send UTF-8")


async def read_body(request: Request, headers: Mapping[str, str], max_bytes: int) -> bytes:
    """The whole body. Raises PayloadTooLarge before more than the cap has been kept."""
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    content = request.content
    if not isinstance(content, ASGIContent):
        return b""
    parts: list[bytes] = []
    n_bytes = 0
    try:
        async for part in content.stream():
            n_bytes += len(part)
            if n_bytes > max_bytes:
                raise _too_large(max_bytes)
            if part:
                parts.append(bytes(part))
    except MessageAborted:
        raise ClientGone from None
    return b"".join(parts)


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the request body is larger than {max_bytes / 2**20:g} MiB; send less or raise --max-body-mib"
    )


def decode_json(data: bytes, max_depth: int) -> Any:
    if not data.strip():
        raise InvalidJson("the request body is empty; send a JSON object")
    try:
        value = _decoded(data, max_depth)
    except RecursionError:
        raise _too_deep(max_depth) from None
    except msgspec.DecodeError as error:
        raise InvalidJson(f"Invalid JSON: {error}") from None
    if is_deeper(value, max_depth):
        raise _too_deep(max_depth)
    return value


def _decoded(data: bytes, max_depth: int) -> Any:
    try:
        return decode_in_pieces(data, max_depth)
    except msgspec.DecodeError:
        return msgspec.json.decode(data)  # its message counts from the beginning


def _too_deep(max_depth: int) -> InvalidJson:
    return InvalidJson(f"Invalid JSON: arrays and objects are nested more than {max_depth} deep")


def is_deeper(value: Any, max_depth: int) -> bool:
    """Are there more than `max_depth` containers inside each other?"""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(max_depth):
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return False
    return bool(level)
