"""Compressed request bodies (Content-Encoding): inflated a piece at a time, never beyond what a body may be."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from imp_server.core import InvalidRequest, UnsupportedMediaType

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ACCEPTED = ("gzip", "deflate", "zstd")
_NAMES = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "zstd": "zstd"}
MOST_CODINGS = 2
"""One over the other: each may inflate what the one below it inflated."""
MOST_MEMBERS = 1024
"""Parts that are compressed for themselves, one behind the other, in one body."""
_WINDOW_LOG = 23
"""Eight MiB, what a zstd decoder must be able to do; a frame may demand a window of any size."""
_STEP = 256 * 1024
Pay = Callable[[int], None]


def codings_of(value: str) -> tuple[str, ...]:
    """Names in the order in which they were applied. Raises UnsupportedMediaType for those that aren't accepted."""
    names = [name for part in value.split(",") if (name := part.strip().lower()) not in ("", "identity")]
    accepted = ", ".join(ACCEPTED)
    for name in names:
        if name not in _NAMES:
            raise UnsupportedMediaType(
                f"the request body has content-encoding {name[:40]!r}; send {accepted}, or no encoding",
                accept_encoding=accepted,
            )
    if len(names) > MOST_CODINGS:
        raise UnsupportedMediaType(
            f"the request body is encoded {len(names)} times; at most {MOST_CODINGS} are decoded",
            accept_encoding=accepted,
        )
    return tuple(_NAMES[name] for name in names)


class TooLarge(Exception):
    """The inflated body is larger than it may be."""


def inflate(data: bytes | bytearray, codings: Sequence[str], max_bytes: int, pay: Pay) -> bytearray:
    """What was encoded. `pay` is told of bytes before they are kept, and may raise.

    Raises TooLarge, and InvalidRequest for what isn't encoded so.
    """
    for coding in reversed(codings):
        inflated = bytearray()
        try:
            for piece in _pieces(memoryview(data), coding):
                if len(inflated) + len(piece) > max_bytes:
                    raise TooLarge
                pay(len(piece))
                inflated += piece
        except (zlib.error, zstd.ZstdError, EOFError) as error:
            raise InvalidRequest(f"the request body isn't {coding}, as its content-encoding says: {error}") from None
        data = inflated
    return bytearray(data) if isinstance(data, bytes) else data


class _Member(Protocol):
    """A decoder of one member, in the manner of zlib's and zstd's."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def feed(self, data: Any) -> Iterator[bytes]: ...


class _Zlib:
    def __init__(self, window_bits: int) -> None:
        self._decoder = zlib.decompressobj(window_bits)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def feed(self, data: Any) -> Iterator[bytes]:
        while len(data) and not self._decoder.eof:
            yield self._decoder.decompress(data, _STEP)
            data = self._decoder.unconsumed_tail


class _Zstd:
    def __init__(self) -> None:
        self._decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def feed(self, data: Any) -> Iterator[bytes]:
        yield self._decoder.decompress(data, _STEP)
        while not self._decoder.needs_input and not self._decoder.eof:
            yield self._decoder.decompress(b"", _STEP)


def _member(coding: str, first: memoryview) -> _Member:
    if coding == "zstd":
        return _Zstd()
    if coding == "gzip":
        return _Zlib(16 + zlib.MAX_WBITS)
    # RFC 9110 means zlib's format by it; many clients send the bare one.
    is_zlib = len(first) > 1 and first[0] & 15 == 8 and (first[0] * 256 + first[1]) % 31 == 0
    return _Zlib(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _pieces(data: memoryview, coding: str) -> Iterator[bytes]:
    """Pieces of at most `_STEP` bytes. What a decoder leaves is copied, so it gets little at a time."""
    at, n_members = 0, 0
    while at < len(data) or not n_members:
        n_members += 1
        if n_members > MOST_MEMBERS or (n_members > 1 and coding == "deflate"):
            raise EOFError("there is more behind its end")
        member = _member(coding, data[at:])
        while not member.eof:
            part = data[at : at + 16 * 1024]
            if not part:
                raise EOFError("it ends too early")
            yield from member.feed(part)
            at += len(part) - (len(member.unused_data) if member.eof else 0)
