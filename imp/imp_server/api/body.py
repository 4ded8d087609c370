"""Reading a request body: media type, size, JSON that is really JSON. Every trap of it is handled here.

Refused with a 4xx: other media types, bodies over the cap (declared or streamed), invalid UTF-8, NaN and
Infinity, numbers beyond a double, lone surrogates, nesting beyond the limit, trailing text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from blacksheep import Request
from blacksheep.contents import ASGIContent

from imp_server.api.admission.body_memory import Charge
from imp_server.api.big_json import LARGE_LEVELS, TooDeepForItsSize, decode_in_pieces
from imp_server.api.content_codings import TooLarge, inflate
from imp_server.api.json_size import json_size
from imp_server.config.serving import ServerSettings
from imp_server.core import InvalidJson, InvalidRequest, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from imp_server.dialects.handler import INLINE_BYTES


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


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How a body must come. `min_rate`: bytes per second on average after the first ten seconds; 0 = any."""

    max_bytes: int
    idle_s: float
    min_rate: float


async def read_body(request: Request, headers: Mapping[str, str], limits: BodyLimits, charge: Charge) -> bytearray:
    """The whole body, as it was sent; `charge` pays for it.

    Raises PayloadTooLarge before more than the cap has been kept, RequestTimeout for one that comes too slowly,
    Unavailable when bodies take too much memory.
    """
    declared = headers.get("content-length", "")
    if declared.isdigit() and len(declared) < 20:
        if int(declared) > limits.max_bytes:
            raise too_large(limits.max_bytes)
        charge.check(int(declared))
    data = bytearray()
    content = request.content
    if not isinstance(content, ASGIContent):
        return data
    begin_s = time.monotonic()
    more = True
    while more:
        message = await _next_part(content, len(data), begin_s, limits)
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        more = message.get("more_body", False)
        if len(data) + len(part) > limits.max_bytes:
            raise too_large(limits.max_bytes)
        charge.add(len(part))
        data += part
    return data


_GRACE_S = 10.0
"""Seconds in which a body may come as slowly as it likes."""


async def _next_part(content: ASGIContent, n_bytes: int, begin_s: float, limits: BodyLimits) -> dict[str, Any]:
    wait_s = limits.idle_s
    if limits.min_rate:
        due_s = max(min(_GRACE_S, limits.idle_s), n_bytes / limits.min_rate)
        wait_s = min(wait_s, begin_s + due_s - time.monotonic())
    try:
        async with asyncio.timeout(max(0.0, wait_s)):
            message: dict[str, Any] = await content.receive()
            return message
    except TimeoutError:
        raise RequestTimeout("the request body came too slowly; send it again") from None


def inflated(data: bytearray, codings: Sequence[str], max_bytes: int, charge: Charge) -> bytearray:
    """Without its codings; `charge` pays for both until the other one is gone."""
    n_sent = len(data)
    n_before = charge.n_bytes
    try:
        plain = inflate(data, codings, max_bytes, charge.add)
    except TooLarge:
        raise too_large(max_bytes) from None
    del data
    charge.give_back(charge.n_bytes - n_before + n_sent - len(plain))
    return plain


def too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the request body is larger than {max_bytes / 2**20:g} MiB; send less or raise --max-body-mib"
    )


def check_json_size(data: bytes | bytearray, server: ServerSettings, charge: Charge) -> None:
    """Before anything is made of `data`. Raises InvalidRequest for more parts than a body may have.

    `charge` pays for what will be made, if that is much.
    """
    most_parts = min(server.max_json_containers, server.max_json_values)
    if len(data) <= INLINE_BYTES and len(data) <= most_parts:
        return
    size = json_size(data)
    for n, limit, what in (
        (size.n_containers, server.max_json_containers, "arrays and objects"),
        (size.n_values, server.max_json_values, "values"),
    ):
        if n > limit:
            raise InvalidRequest(f"the request body has {n} {what}; at most {limit} are taken")
    if len(data) > INLINE_BYTES:
        charge.add(size.n_bytes)


def decode_json(data: bytes | bytearray, max_depth: int) -> Any:
    if not data.strip():
        raise InvalidJson("the request body is empty; send a JSON object")
    try:
        value = _decoded(data, max_depth)
    except TooDeepForItsSize:
        raise InvalidJson(
            f"Invalid JSON: more than {LARGE_LEVELS} arrays and objects that are this large are nested in each other"
        ) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except msgspec.DecodeError as error:
        raise InvalidJson(f"Invalid JSON: {error}") from None
    if is_deeper(value, max_depth):
        raise _too_deep(max_depth)
    return value


def _decoded(data: bytes | bytearray, max_depth: int) -> Any:
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
