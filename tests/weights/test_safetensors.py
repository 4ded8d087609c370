"""Files that aren't what they say: every lie in a safetensors header is a clear refusal."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imp_server.core import UserFault
from imp_server.weights.safetensors import SafetensorsFile


def raw(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "short": (b"abc", "too few"),
    "length": (raw({}, size=2**63), "header is said"),
    "beyond": (raw({}, size=99), "header is said"),
    "json": (raw(b"{]"), "isn't JSON"),
    "utf-8": (raw(b"\xff\xfe"), "isn't JSON"),
    "deep": (raw(b"[" * 100_000), "isn't"),
    "list": (raw([]), "isn't an object"),
    "entry": (raw({"t": 1}), "'t'"),
    "dtype": (raw(entry("F12"), b"\0" * 4), "'t' has the unknown type 'F12'"),
    "negative": (raw(entry(shape=[-1]), b"\0" * 4), "'t' has the shape"),
    "float": (raw(entry(shape=[1.0]), b"\0" * 4), "'t' has the shape"),
    "bool": (raw(entry(shape=[True]), b"\0" * 4), "'t' has the shape"),
    "product": (raw(entry(shape=[2**40, 2**40]), b"\0" * 4), "'t' needs"),
    "offsets": (raw(entry(offsets=[4, 0]), b"\0" * 4), "'t' needs"),
    "one offset": (raw(entry(offsets=[0]), b"\0" * 4), "'t' has the offsets"),
    "truncated": (raw(entry(), b"\0" * 3), "'t' ends at"),
    "huge": (raw(entry(shape=[2**60], offsets=[0, 2**62]), b"\0" * 3), "'t'"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str, tmp_path: Path) -> None:
    data, words = HOSTILE[name]
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(UserFault, match=words):
        SafetensorsFile(path)


@settings(max_examples=100, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    good = raw(entry(shape=[2, 2], offsets=[0, 16]), b"\0" * 16)
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 17))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.safetensors"
    path.write_bytes(bad)
    with contextlib.suppress(UserFault):
        file = SafetensorsFile(path)
        for name, stored in file.tensors.items():
            assert file.data(name).nbytes == stored.nbytes <= len(bad)
