"""Packed matrices: dequantised values against the format's own reference, products against the twin, bit by bit."""

from __future__ import annotations

import ctypes

import gguf
import numpy as np
import pytest
from gguf import quants
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.errors import KernelError
from imp_server.backends.cpu.layouts import FLOAT_LAYOUTS, LAYOUTS, SPLIT
from imp_server.backends.cpu.packing import PackedShape, pack, pack_plainly, packed_shape
from imp_server.backends.cpu.twin import Arithmetic, TwinMatrix
from imp_server.models.source import RawTensor
from imp_server.native import usable_isas
from imp_server.weights.ggml_types import BY_NAME

from tests.backends.cpu.synthetic_models import random_tensor

TYPES = [*LAYOUTS, *FLOAT_LAYOUTS]
ISAS = usable_isas()


class Packed:
    def __init__(self, raw: RawTensor, isa: str, quantize: str = "none") -> None:
        self.library = abi.library(isa)
        self.shape = packed_shape(raw.type.name, raw.shape, quantize)
        room = np.zeros(self.shape.nbytes + 4096, dtype=np.uint8)
        self._bytes = room[-room.ctypes.data % 64 :][: self.shape.nbytes]
        pack(raw, self.shape, self._bytes)
        s = self.shape
        self.matrix = abi.Matrix(self._bytes.ctypes.data, s.panel_bytes, s.format_index, s.n_out, s.n_in, s.n_blocks)

    def dequantised(self) -> np.ndarray:
        out = np.empty((self.shape.n_out, self.shape.n_in), dtype=np.float32)
        self.library.imp_cpu_dequantise(ctypes.byref(self.matrix), 0, self.shape.n_out, out.ctypes.data)
        return out

    def multiply(self, x: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(x, dtype=np.float32)
        out = np.empty((len(x), self.shape.n_out), dtype=np.float32)
        assert (
            self.library.imp_cpu_multiply(ctypes.byref(self.matrix), x.ctypes.data, len(x), out.ctypes.data)
            == KernelError.ok
        )
        return out


def reference_values(raw: RawTensor) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[raw.type.name]
    with np.errstate(all="ignore"):
        return quants.dequantize(raw.data.reshape(raw.shape[0], -1), kind).reshape(raw.shape)


def columns(type_name: str, n_blocks: int) -> int:
    return 256 * n_blocks if BY_NAME[type_name].block == 256 else 32 * n_blocks


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("n_out, n_blocks", [(1, 1), (37, 3), (16, 8), (50, 9)])
def test_dequantised_values_are_the_formats_own_on_random_bytes(
    isa: str, type_name: str, n_out: int, n_blocks: int
) -> None:
    """Every bit pattern, NaN and infinite scales included."""
    rng = np.random.default_rng(n_out)
    kind = BY_NAME[type_name]
    shape = (n_out, columns(type_name, n_blocks))
    data = rng.integers(0, 256, n_out * shape[1] // kind.block * kind.block_bytes, dtype=np.uint8)
    raw = RawTensor(kind, shape, data)
    with np.errstate(all="ignore"):
        got, want = Packed(raw, isa).dequantised(), reference_values(raw)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", [*LAYOUTS, SPLIT])
@pytest.mark.parametrize("n_in", [2048, 8192, 768, 2880])
def test_a_packed_matrix_takes_the_bytes_of_the_file(isa: str, type_name: str, n_in: int) -> None:
    """Decoding is bound by bytes. Odd numbers of blocks may cost an unfinished cache line or two a panel."""
    kind = BY_NAME["Q8_0" if type_name == SPLIT else type_name]
    if n_in % kind.block:
        return
    shape = PackedShape(type_name, 64, n_in)
    theirs = 64 * n_in // kind.block * kind.block_bytes
    assert theirs <= shape.nbytes <= 1.01 * theirs
    assert abi.library(isa).imp_cpu_panel_bytes(shape.format_index, shape.n_blocks) == shape.panel_bytes


@pytest.mark.parametrize("type_name", [*LAYOUTS, SPLIT])
@pytest.mark.parametrize("n_out, n_blocks", [(1, 1), (37, 3), (32, 8), (50, 9)])
def test_native_packing_equals_the_plain_one(type_name: str, n_out: int, n_blocks: int) -> None:
    """Every byte, unfinished spans and panels included."""
    rng = np.random.default_rng(n_blocks)
    kind = BY_NAME["Q8_0" if type_name == SPLIT else type_name]
    shape = packed_shape(kind.name, (n_out, columns(kind.name, n_blocks)), is_split=type_name == SPLIT)
    data = rng.integers(0, 256, n_out * shape.n_in // kind.block * kind.block_bytes, dtype=np.uint8)
    raw = RawTensor(kind, (n_out, shape.n_in), data)
    plain = np.full(shape.nbytes, 0xA5, dtype=np.uint8)
    pack_plainly(raw, shape, plain)
    for isa in ISAS:
        native = np.full(shape.nbytes, 0x5A, dtype=np.uint8)
        arguments = shape.format_index, data.ctypes.data, n_out, shape.n_blocks, native.ctypes.data
        assert abi.library(isa).imp_cpu_pack(*arguments) == KernelError.ok
        np.testing.assert_array_equal(native, plain)


def test_a_digest_sees_every_bit_and_is_equal_everywhere() -> None:
    words = np.random.default_rng(1).integers(0, 2**32, 1000, dtype=np.uint32)
    digests = {abi.library(isa).imp_cpu_digest(words.ctypes.data, len(words)) for isa in ISAS}
    for at in (0, 63, 64, 500, 999):
        for bit in (0, 13, 31):
            changed = words.copy()
            changed[at] ^= np.uint32(1 << bit)
            digests.add(abi.library().imp_cpu_digest(changed.ctypes.data, len(words)))
    zeros = np.zeros(1000, dtype=np.uint32)
    digests |= {abi.library().imp_cpu_digest(zeros.ctypes.data, n) for n in (1000, 999, 1)}
    assert len(digests) == 1 + 15 + 3


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", TYPES)
def test_products_equal_the_twin(isa: str, type_name: str) -> None:
    rng = np.random.default_rng(7)
    shape = (70, columns(type_name, 9 if BY_NAME[type_name].block == 32 else 3))
    raw = random_tensor(type_name, shape, rng)
    packed, twin = Packed(raw, isa), TwinMatrix(raw)
    rules = Arithmetic(has_fma=isa != "portable")
    x = rng.standard_normal((9, shape[1])).astype(np.float32)
    np.testing.assert_array_equal(packed.multiply(x), twin.multiply(x, rules))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", TYPES)
def test_a_row_never_depends_on_its_batch(isa: str, type_name: str) -> None:
    rng = np.random.default_rng(3)
    shape = (33, columns(type_name, 2))
    packed = Packed(random_tensor(type_name, shape, rng), isa)
    x = rng.standard_normal((33, shape[1])).astype(np.float32)
    alone = np.concatenate([packed.multiply(x[i : i + 1]) for i in range(33)])
    for n in (2, 3, 4, 5, 6, 7, 8, 9, 16, 33):
        np.testing.assert_array_equal(packed.multiply(x[:n]), alone[:n])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0", "Q6_K", "IQ4_NL"])
def test_hostile_activations(isa: str, type_name: str) -> None:
    """Zero rows, tiny and huge magnitudes, full int8 range in every position, ties of rounding."""
    rng = np.random.default_rng(5)
    n_in = columns(type_name, 2)
    raw = random_tensor(type_name, (19, n_in), rng)
    rows = [
        np.zeros(n_in),
        np.full(n_in, 1e-31),
        np.full(n_in, 1e-29),
        rng.standard_normal(n_in) * 1e30,
        np.where(np.arange(n_in) % 2, 127.0, -127.0),
        np.full(n_in, 127.0),
        np.where(np.arange(n_in) % 32 == 0, 127.0, np.arange(n_in) % 100 - 49.5),
        np.full(n_in, -1e38),
    ]
    x = np.array(rows, dtype=np.float32)
    with np.errstate(all="ignore"):
        want = TwinMatrix(raw).multiply(x, Arithmetic(has_fma=isa != "portable"))
    np.testing.assert_array_equal(Packed(raw, isa).multiply(x), want)


@pytest.mark.parametrize("quantize, type_name", [("q8", "Q8_0"), ("q4", "Q4_1")])
@pytest.mark.parametrize("source", FLOAT_LAYOUTS)
def test_quantising_floats_at_load_rounds_to_the_nearest(quantize: str, type_name: str, source: str) -> None:
    rng = np.random.default_rng(11)
    raw = random_tensor(source, (20, 100), rng)
    packed = Packed(raw, ISAS[0], quantize)
    assert packed.shape.type == type_name
    exact = Packed(raw, ISAS[0]).dequantised()
    error = np.abs(packed.dequantised() - exact)
    blocks = np.pad(exact, ((0, 0), (0, 28))).reshape(20, 4, 32)
    step = np.abs(blocks).max(2) / 127 if quantize == "q8" else (blocks.max(2) - blocks.min(2)) / 15
    assert (np.pad(error, ((0, 0), (0, 28))).reshape(20, 4, 32) <= step[:, :, None] * 0.51 + 1e-4).all()
