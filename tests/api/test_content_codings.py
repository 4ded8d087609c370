"""Compressed bodies: every coding, stacked and in parts; bounded however much they inflate."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
import zlib
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api.content_codings import MOST_MEMBERS, TooLarge, codings_of, inflate
from imp_server.core import ImpError, InvalidRequest, UnsupportedMediaType

from tests.api.hostile_bodies import zstd
from tests.api.raw_http import BODY, CHAT


def bare_deflate(data: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=-15)
    return encoder.compress(data) + encoder.flush()


ENCODERS: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}


def free(_n_bytes: int) -> None:
    pass


def post(http: httpx.Client, content: bytes, coding: str, path: str = CHAT) -> httpx.Response:
    return http.post(path, content=content, headers={"content-type": "application/json", "content-encoding": coding})


@pytest.mark.parametrize("coding", [*ENCODERS, "x-gzip", "GZIP", "identity", "gzip, identity", "", "deflate, zstd"])
def test_bodies_are_inflated(http: httpx.Client, coding: str) -> None:
    data = json.dumps(BODY).encode()
    for name in codings_of(coding):
        data = ENCODERS[name](data)
    response = post(http, data, coding)
    assert (response.status_code, response.json()["choices"][0]["message"]["content"]) == (200, "Hello wörld")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/completion", "/generate"])
def test_every_dialect_names_what_it_takes(http: httpx.Client, path: str) -> None:
    for coding in ("br", "compress", "gzip, br", "gzip, gzip, gzip"):
        response = post(http, b"x", coding, path)
        assert (response.status_code, response.headers["accept-encoding"]) == (415, "gzip, deflate, zstd")
    assert "'br'" in post(http, b"x", "br", path).text and "zstd" in post(http, b"x", "br", path).text


@pytest.mark.parametrize("coding", ENCODERS)
def test_what_is_broken_is_a_400(http: httpx.Client, coding: str) -> None:
    whole = ENCODERS[coding](json.dumps(BODY).encode())
    for data in (b"plain", whole[:-3], whole[:5], whole + b"x"):
        response = post(http, data, coding)
        assert (response.status_code, coding in response.json()["error"]["message"]) == (400, True), data


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=5000), codings=st.lists(st.sampled_from(sorted(ENCODERS)), min_size=1, max_size=2))
def test_there_and_back(data: bytes, codings: list[str]) -> None:
    encoded = data
    for coding in codings:
        encoded = ENCODERS[coding](encoded)
    assert inflate(encoded, codings, 100_000, free) == data


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), coding=st.sampled_from(sorted(ENCODERS)), cut=st.integers(0, 40))
def test_anything_is_inflated_or_refused(data: bytes, coding: str, cut: int) -> None:
    for text in (data, ENCODERS[coding](b"abc" * 30)[:cut] + data):
        with contextlib.suppress(InvalidRequest, TooLarge):
            inflate(text, [coding], 1000, free)


def test_parts_behind_each_other() -> None:
    assert inflate(gzip.compress(b"a") + gzip.compress(b"b"), ["gzip"], 9, free) == b"ab"
    assert inflate(zstd.compress(b"a") * 3, ["zstd"], 9, free) == b"aaa"
    assert inflate(bare_deflate(b"abc"), ["deflate"], 9, free) == b"abc"


@pytest.mark.parametrize("coding", ENCODERS)
def test_a_bomb_is_refused_before_it_is_large(coding: str) -> None:
    """50 MB, and 50 MB of one another's parts; a limit of one."""
    bomb = ENCODERS[coding](bytes(50_000_000))
    paid: list[int] = []
    for text in (bomb, ENCODERS[coding](bomb)):
        start = time.process_time()
        with pytest.raises(TooLarge):
            inflate(text, [coding] if text is bomb else [coding] * 2, 1_000_000, paid.append)
        assert time.process_time() - start < 0.5
    assert sum(paid) < 3_000_000 and max(paid) <= 256 * 1024


def test_parts_are_counted() -> None:
    start = time.process_time()
    with pytest.raises(InvalidRequest, match="more behind its end"):
        inflate(gzip.compress(b"") * 200_000, ["gzip"], 1 << 30, free)
    assert time.process_time() - start < 0.5
    assert inflate(gzip.compress(b"x") * MOST_MEMBERS, ["gzip"], 1 << 20, free) == b"x" * MOST_MEMBERS


def test_a_window_of_any_size_is_not_taken() -> None:
    huge = zstd.compress(bytes(1000), options={zstd.CompressionParameter.window_log: 27})
    giant = bytes([0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xF8]) + huge[6:]
    with pytest.raises(InvalidRequest):
        inflate(giant, ["zstd"], 1 << 30, free)


def test_inflated_size_counts_as_the_body_s(http: httpx.Client) -> None:
    bomb = gzip.compress(json.dumps({**BODY, "x": "y" * 110_000_000}).encode(), 1)
    response = post(http, bomb, "gzip")
    assert response.status_code == 413 and "100 MiB" in response.text


def test_names() -> None:
    assert codings_of("") == codings_of("identity") == ()
    assert codings_of(" X-GZIP ,deflate") == ("gzip", "deflate")
    with pytest.raises(UnsupportedMediaType):
        codings_of("gzip;q=1")
    with pytest.raises(ImpError):
        codings_of(",".join(["gzip"] * 10_000))
