"""The best id by way of a head's upper bits is that of the full product, whatever the weights and the row."""

from __future__ import annotations

from ctypes import byref, c_int32

import numpy as np
import numpy.typing as npt
import pytest
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.errors import KernelError
from imp_server.backends.cpu.layouts import SPLIT
from imp_server.backends.cpu.packing import pack, packed_shape
from imp_server.models.source import RawTensor
from imp_server.native import usable_isas
from imp_server.weights.ggml_types import BY_NAME

ISAS = usable_isas()
NOT_BOUNDED = -1


def aligned(n_bytes: int) -> npt.NDArray[np.uint8]:
    room = np.zeros(n_bytes + 4096, dtype=np.uint8)
    return room[-room.ctypes.data % 64 :][:n_bytes]


class Head:
    """A Q8_0 head of given scales [n_out, n_blocks] and values [n_out, 32 n_blocks], whole and split."""

    def __init__(self, scales: npt.NDArray[np.float16], values: npt.NDArray[np.int8]) -> None:
        n_out, n_in = values.shape
        blocks = np.empty((n_out, n_in // 32, 34), dtype=np.uint8)
        blocks[:, :, :2] = np.ascontiguousarray(scales, dtype=np.float16)[:, :, None].view(np.uint8)
        blocks[:, :, 2:] = values.reshape(n_out, -1, 32).view(np.uint8)
        raw = RawTensor(BY_NAME["Q8_0"], (n_out, n_in), blocks.reshape(-1))
        self.bytes, self.matrices = [], []
        for is_split in (False, True):
            s = packed_shape("Q8_0", (n_out, n_in), is_split=is_split)
            self.bytes.append(aligned(s.nbytes))
            pack(raw, s, self.bytes[-1])
            at = self.bytes[-1].ctypes.data
            self.matrices.append(abi.Matrix(at, s.panel_bytes, s.format_index, n_out, n_in, s.n_blocks))

    def logits(self, isa: str, x: npt.NDArray[np.float32], which: int = 0) -> npt.NDArray[np.float32]:
        out = np.empty(self.matrices[0].n_out, dtype=np.float32)
        abi.library(isa).imp_cpu_multiply(byref(self.matrices[which]), x.ctypes.data, 1, out.ctypes.data)
        return out

    def best(self, isa: str, x: npt.NDArray[np.float32], n_threads: int = 1) -> tuple[int, int]:
        """The id by way of the upper bits, and the panels that were multiplied in full."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        best, evaluated = c_int32(), c_int32()
        arguments = byref(self.matrices[1]), x.ctypes.data, n_threads, byref(best), byref(evaluated)
        assert abi.library(isa).imp_cpu_plane_best(*arguments) == KernelError.ok
        return best.value, evaluated.value

    def check(self, isa: str, x: npt.NDArray[np.float32], n_threads: int = 1) -> int:
        x = np.ascontiguousarray(x, dtype=np.float32)
        logits = self.logits(isa, x)
        assert np.isfinite(logits).all()
        best, evaluated = self.best(isa, x, n_threads)
        assert best == int(logits.argmax())  # numpy's is the lowest id, too
        return evaluated


def random_head(rng: np.random.Generator, n_out: int, n_blocks: int, size: float = 1e-3) -> Head:
    scales = (size * rng.uniform(0.5, 1.5, (n_out, n_blocks))).astype(np.float16)
    return Head(scales, rng.integers(-128, 128, (n_out, 32 * n_blocks)).astype(np.int8))


def test_a_search_reads_two_thirds_and_the_split_costs_nothing() -> None:
    whole, split = (packed_shape("Q8_0", (16, 576), is_split=wanted) for wanted in (False, True))
    assert split.type == SPLIT and split.nbytes == whole.nbytes
    assert split.upper_bytes < 0.65 * split.nbytes and whole.upper_bytes == whole.nbytes
    assert packed_shape("Q6_K", (16, 512), is_split=True).type == "Q6_K"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n_out, n_blocks", [(1, 1), (17, 5), (331, 18)])
def test_a_split_head_multiplies_as_a_whole_one(isa: str, n_out: int, n_blocks: int) -> None:
    rng = np.random.default_rng(n_blocks)
    head = random_head(rng, n_out, n_blocks)
    x = rng.standard_normal(32 * n_blocks).astype(np.float32)
    np.testing.assert_array_equal(head.logits(isa, x, 1), head.logits(isa, x, 0))
    whole, split = np.empty((2, n_out, 32 * n_blocks), dtype=np.float32)
    for matrix, out in zip(head.matrices, (whole, split), strict=True):
        abi.library(isa).imp_cpu_dequantise(byref(matrix), 0, n_out, out.ctypes.data)
    np.testing.assert_array_equal(split, whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n_out, n_blocks", [(1, 1), (15, 2), (16, 3), (17, 5), (331, 18), (2000, 7), (1000, 33)])
def test_random_heads(isa: str, n_out: int, n_blocks: int) -> None:
    """Odd tails of panels and of pairs of blocks; logits of either sign."""
    rng = np.random.default_rng(n_out)
    head = random_head(rng, n_out, n_blocks)
    for _ in range(12):
        head.check(isa, rng.standard_normal(32 * n_blocks).astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
def test_negative_logits_lose_to_no_padding(isa: str) -> None:
    x = np.ones(64, dtype=np.float32)
    rng = np.random.default_rng(1)
    head = Head(np.full((19, 2), 0.01, np.float16), rng.integers(-128, -90, (19, 64)).astype(np.int8))
    head.check(isa, x)


@pytest.mark.parametrize("isa", ISAS)
def test_few_panels_are_multiplied_when_the_best_stands_out(isa: str) -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(-40, 41, (4096, 576)).astype(np.int8)
    x = rng.standard_normal(576).astype(np.float32)
    values[2222] = np.clip(np.rint(x * 40), -128, 127)
    head = Head(np.full((4096, 18), 0.01, np.float16), values)
    assert head.check(isa, x) <= 4
    assert head.check(isa, x, n_threads=2) <= 4


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_near_ties_in_the_low_bits(isa: str, n_threads: int) -> None:
    """Rows equal in what the plane holds: only the residuals tell them apart, in every panel."""
    rng = np.random.default_rng(3)
    base = (rng.integers(-16, 16, 160) * 8).astype(np.int16)
    for _ in range(8):
        values = (base + rng.integers(0, 8, (1100, 160))).astype(np.int8)
        head = Head(np.full((1100, 5), 0.02, np.float16), values)
        head.check(isa, rng.standard_normal(160).astype(np.float32), n_threads)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("n_rivals", [1, 3, 300])
def test_residuals_at_their_limits(isa: str, n_threads: int, n_rivals: int) -> None:
    """The best row lies above its plane by all that the bound allows; its rivals, one unit of one weight behind, look
    better in the plane by 4 for each weight.
    """
    rng = np.random.default_rng(4)
    for trial in range(8):
        sign = np.where(rng.random(96) < 0.5, -1, 1)
        best = 8 * rng.integers(-15, 15, 96) + np.where(sign > 0, 7, 0)
        across = rng.permutation(np.arange(96) < 47)
        rival = best + np.where(across, sign, -sign)
        rival[np.flatnonzero(~across)[0]] += sign[np.flatnonzero(~across)[0]]
        assert (best @ sign) - (rival @ sign) == 1
        values = np.tile(np.where(sign > 0, -100, 100), (600, 1))
        places = rng.permutation(600)
        values[places[0]], values[places[1 : 1 + n_rivals]] = best, rival
        x = sign.astype(np.float32) * np.float32(1 + trial)
        head = Head(np.full((600, 3), 0.004, np.float16), values.astype(np.int8))
        head.check(isa, x, n_threads)
        assert head.best(isa, x, n_threads)[0] == places[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_equal_rows_give_the_lowest_id(isa: str, n_threads: int) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(-30, 30, (1500, 64)).astype(np.int8)
    x = rng.standard_normal(64).astype(np.float32)
    values[[1400, 77, 300, 1499]] = np.clip(np.rint(30 * x), -128, 127)
    head = Head(np.full((1500, 2), 0.01, np.float16), values)
    head.check(isa, x, n_threads)
    assert head.best(isa, x, n_threads)[0] == 77
    same = Head(np.full((1500, 2), 0.01, np.float16), np.tile(values[:1], (1500, 1)))
    assert same.best(isa, x, n_threads)[0] == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [6e-8, 1e-5, 1.0, 6e4])
@pytest.mark.parametrize("magnitude", [1e-31, 1e-29, 1e-3, 1e4, 1e15])
def test_extreme_scales(isa: str, size: float, magnitude: float) -> None:
    """Subnormal halves and vanishing activations: the products leave the normal range."""
    rng = np.random.default_rng(6)
    scales = (size * rng.choice([0.0, 1.0, -1.0], (300, 3))).astype(np.float16)
    head = Head(scales, rng.integers(-128, 128, (300, 96)).astype(np.int8))
    x = (rng.standard_normal(96) * magnitude).astype(np.float32)
    head.check(isa, x)
    x[:48] *= np.float32(1e-6)
    head.check(isa, x)


@pytest.mark.parametrize("isa", ISAS)
def test_zero_rows(isa: str) -> None:
    rng = np.random.default_rng(7)
    head = random_head(rng, 100, 2)
    assert head.check(isa, np.zeros(64, dtype=np.float32)) == 7
    dead = Head(np.zeros((100, 2), np.float16), rng.integers(-128, 128, (100, 64)).astype(np.int8))
    dead.check(isa, rng.standard_normal(64).astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_what_is_no_number_is_left_to_the_full_product(isa: str, n_threads: int) -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal(64).astype(np.float32)
    for bad in (np.inf, -np.inf, np.nan):
        scales = np.full((200, 2), 0.01, np.float16)
        scales[150, 1] = bad
        values = rng.integers(-128, 128, (200, 64)).astype(np.int8)
        assert Head(scales, values).best(isa, x, n_threads)[0] == NOT_BOUNDED
        values[150] = 0
        assert Head(scales, values).best(isa, np.zeros_like(x), n_threads)[0] == NOT_BOUNDED
    head = random_head(rng, 200, 2)
    for huge in (np.inf, -np.inf, 3e38):
        assert head.best(isa, np.where(np.arange(64) == 40, np.float32(huge), x), n_threads)[0] == NOT_BOUNDED
    zero = Head(np.zeros((200, 2), np.float16), np.full((200, 64), -128, np.int8))
    for huge in (1e36, 3e38):  # the product overflows before the scale makes it 0 times infinity
        assert zero.best(isa, np.full(64, huge, np.float32), n_threads)[0] == NOT_BOUNDED
    # Not-a-numbers among the activations are quantised to something; both ways read the same.
    x[5] = np.nan
    if np.isfinite(logits := head.logits(isa, x)).all():
        assert head.best(isa, x, n_threads)[0] == int(logits.argmax())
