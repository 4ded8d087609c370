"""The GGUF reader: what the `gguf` package reads, laziness, and every way a file can lie."""

from __future__ import annotations

import contextlib
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel, UserFault
from imp_server.weights.gguf import GgufFile, StringArray
from imp_server.weights.header import header_of_gguf, read_header

from tests.real_model import smollm2
from tests.weights.gguf_writer import gguf_bytes, text, typed, write

F32 = 0
META: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "toy",
    "llama.context_length": 128,
    "tokenizer.ggml.tokens": ["a", "é", ""],
    "tokenizer.ggml.scores": [1.0, 2.0, 3.0],
    "tokenizer.chat_template": "{{ x }}",
    "flag": True,
    "wide": ("i64", -5),
    "bools": [True, False],
}
DATA = np.arange(64, dtype="<f4").tobytes()
TENSORS = {"blk.0.w": (F32, (2, 32), DATA), "v": (F32, (3,), DATA[:12])}


def test_reads_what_was_written(tmp_path: Path) -> None:
    file = GgufFile(write(tmp_path / "a.gguf", META, TENSORS))
    assert file.metadata["general.name"] == "toy"
    assert list(file.metadata["tokenizer.ggml.tokens"]) == ["a", "é", ""]
    assert file.metadata["tokenizer.ggml.tokens"][1:] == ["é", ""]
    assert file.metadata["tokenizer.ggml.tokens"].raw(1) == "é".encode()
    assert file.metadata["wide"] == -5
    assert file.metadata["flag"] is True
    np.testing.assert_array_equal(file.metadata["bools"], [True, False])
    np.testing.assert_array_equal(file.metadata["tokenizer.ggml.scores"], [1, 2, 3])
    assert file.tensors["blk.0.w"].shape == (2, 32)
    assert file.data("blk.0.w").tobytes() == DATA
    assert not file.data("v").flags.writeable
    with pytest.raises(InvalidModel, match="no tensor 'w'"):
        file.data("w")


def test_header(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "a.gguf", META, TENSORS))
    assert (header.architecture, header.context_length, header.chat_template) == ("llama", 128, "{{ x }}")
    assert header.n_parameters == 67 and header.quantisation == "F32"
    assert header.hyperparameters == {"context_length": 128}
    with pytest.raises(InvalidModel, match=r"general\.architecture"):
        header_of_gguf(GgufFile(write(tmp_path / "b.gguf", {}, {})))


def test_equals_the_gguf_package() -> None:
    smollm2_path = smollm2()
    gguf = pytest.importorskip("gguf")
    theirs, ours = gguf.GGUFReader(smollm2_path), GgufFile(smollm2_path)
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert info.shape == tuple(int(d) for d in tensor.shape[::-1])
    for key in (k for k in theirs.fields if not k.startswith("GGUF.")):
        mine, field = ours.metadata[key], theirs.fields[key]
        if isinstance(mine, StringArray):
            for index in (0, len(mine) // 2, len(mine) - 1):
                assert mine[index] == field.contents(index)
        elif isinstance(mine, np.ndarray):
            assert mine.tolist() == field.contents()
        else:
            assert mine == field.contents()


def test_opens_in_time() -> None:
    smollm2_path = smollm2()
    best = 1e9
    for _ in range(3):
        start = time.perf_counter()
        assert len(GgufFile(smollm2_path).metadata["tokenizer.ggml.tokens"].raw_all()) == 49152
        best = min(best, time.perf_counter() - start)
    assert best < 0.3


def head(n_tensors: int = 0, n_keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, n_tensors, n_keys)


def key(name: str, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    shape = b"".join(struct.pack("<Q", d) for d in dims)
    return text(name) + struct.pack("<I", len(dims)) + shape + struct.pack("<IQ", kind, offset)


HUGE = 2**63
HOSTILE: dict[str, tuple[bytes, type[UserFault], str]] = {
    "short": (b"GGUF\3\0\0\0", InvalidModel, "too few"),
    "magic": (head(magic=b"PK\3\4"), InvalidModel, "not a GGUF"),
    "version": (head(version=9), UnsupportedModel, "version 9"),
    "big endian": (head(version=0x03000000), UnsupportedModel, "big-endian"),
    "keys": (head(n_keys=HUGE), InvalidModel, "number of metadata keys"),
    "tensors": (head(n_tensors=HUGE), InvalidModel, "number of tensors"),
    "key name": (head(n_keys=1) + struct.pack("<Q", HUGE) + b"x" * 9, InvalidModel, "name of metadata key 0"),
    "string": (head(n_keys=1) + key("k", 8, struct.pack("<Q", 100)) + b"x" * 9, InvalidModel, "inside 'k'"),
    "not UTF-8": (head(n_keys=1) + key("k", 8, text(b"\xff\xfe")), InvalidModel, "'k' isn't UTF-8"),
    "array count": (head(n_keys=1) + key("k", 9, struct.pack("<IQ", 4, HUGE)), InvalidModel, "length of 'k'"),
    "strings": (
        head(n_keys=1) + key("k", 9, struct.pack("<IQ", 8, 2) + text("a") + struct.pack("<Q", HUGE)),
        InvalidModel,
        "past the end",
    ),
    "nested": (head(n_keys=1) + key("k", 9, struct.pack("<IQ", 9, 1)), InvalidModel, "unsupported type 9"),
    "value type": (head(n_keys=1) + key("k", 77, b"\0" * 8), InvalidModel, "'k' has the unknown type 77"),
    "twice": (head(n_keys=2) + key("k", 4, b"\0" * 4) * 2, InvalidModel, "'k' occurs twice"),
    "alignment": (gguf_bytes({"general.alignment": 33}), InvalidModel, "general.alignment"),
    "dims": (head(1) + tensor("t", (1,) * 5, 0, 0), InvalidModel, "'t' has 5 dimensions"),
    "empty dim": (head(1) + tensor("t", (4, 0), 0, 0), InvalidModel, "'t' has an empty dimension"),
    "overflow": (head(1) + tensor("t", (2**40, 2**40), 0, 0), InvalidModel, "'t' ends at byte"),
    "type": (head(1) + tensor("t", (32,), 99, 0), UnsupportedModel, "'t' has the unknown type 99"),
    "block": (head(1) + tensor("t", (31,), 2, 0), InvalidModel, "rows of tensor 't'"),
    "offset": (head(1) + tensor("t", (1,), 0, 4), InvalidModel, "'t' starts at 4"),
    "far": (head(1) + tensor("t", (1,), 0, 2**40), InvalidModel, "'t' ends at byte"),
    "same name": (head(2) + tensor("t", (1,), 0, 0) * 2 + b"\0" * 64, InvalidModel, "twice"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str, tmp_path: Path) -> None:
    data, error, message = HOSTILE[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(error, match=message):
        GgufFile(path)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(ModelFileMissing):
        GgufFile(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(InvalidModel):
        GgufFile(tmp_path / "empty.gguf")


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "a.gguf", META, TENSORS)


def test_every_truncation_is_refused(valid: Path, tmp_path: Path) -> None:
    data = valid.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        with pytest.raises(InvalidModel):
            GgufFile(cut)


@settings(max_examples=150, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes_are_read_or_refused(valid: Path, tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(valid.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - len(DATA)))
        raw[at] = data.draw(st.sampled_from([0, 1, 8, 9, 0x7F, 0x80, 0xFF]))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    with contextlib.suppress(UserFault):  # anything else is a failure
        file = GgufFile(path)
        for name, info in file.tensors.items():
            assert file.data(name).nbytes == info.nbytes <= len(raw)
        header_of_gguf(file)


def split_parts(folder: Path) -> list[Path]:
    parts = []
    for number, (name, value) in enumerate(TENSORS.items()):
        meta = {"split.count": ("u16", 2), "split.no": ("u16", number), "split.tensors.count": ("i32", 2)}
        path = folder / f"m-{number + 1:05d}-of-00002.gguf"
        parts.append(write(path, (META if number == 0 else {}) | meta, {name: value}))
    return parts


def test_split(tmp_path: Path) -> None:
    parts = split_parts(tmp_path)
    file = GgufFile(parts[0])
    assert file.data("v").tobytes() == DATA[:12] and file.data("blk.0.w").tobytes() == DATA
    assert file.paths == parts
    other = GgufFile(parts[1])
    assert other.metadata["general.name"] == "toy" and set(other.tensors) == set(TENSORS)


def test_split_faults(tmp_path: Path) -> None:
    parts = split_parts(tmp_path)
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(parts[0].read_bytes())
    with pytest.raises(InvalidModel, match="keep the parts' own names"):
        GgufFile(renamed)
    parts[1].unlink()
    with pytest.raises(ModelFileMissing, match=r"m-00002-of-00002\.gguf"):
        GgufFile(parts[0])
    write(parts[1], {"split.count": ("u16", 2)}, {})
    with pytest.raises(InvalidModel, match=r"split\.tensors\.count says 2"):
        GgufFile(parts[0])


def test_writer_of_the_tests_is_sane() -> None:
    assert typed("a") == struct.pack("<IQ", 8, 1) + b"a"
