"""Planes of packed weights: they say what the file says, and take the room that formats.py gives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from imp_server.backends.cuda.formats import FLOATS, FORMATS
from imp_server.backends.cuda.operations import PackedMatrix
from imp_server.backends.cuda.packing import check_packable, matrix_bytes, pack, rows_of, stacked
from imp_server.backends.cuda.plain.weights import dequantised, gathered, multiply
from imp_server.core import UnsupportedModel
from imp_server.models.source import RawTensor
from imp_server.weights.dequantise import dequantise

from tests.backends.cpu.synthetic_models import random_tensor

CPU = torch.device("cpu")
FROM_FILES = [name for name in FORMATS if name not in ("FP8", "NVFP4")]
MORE_BYTES = {"Q2_K": 1.2, "Q3_K": 1.04, "Q4_K": 1.04, "Q5_K": 1.03, "IQ4_XS": 1.02}
"""Scales of two levels are whole bytes here, and four or six bits in files."""


def tensor(name: str, n_out: int = 7, n_in: int = 512) -> RawTensor:
    return random_tensor(name, (n_out, n_in), np.random.default_rng(len(name)))


@pytest.mark.parametrize("name", [*FROM_FILES, *FLOATS])
def test_a_matrix_says_what_its_file_says(name: str) -> None:
    raw = tensor(name)
    want = dequantise(raw.type, raw.data).reshape(raw.shape)
    got = dequantised(pack(raw, CPU)).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize("name", FROM_FILES)
def test_planes_take_little_more_than_the_file(name: str) -> None:
    raw = tensor(name, n_out=64)
    assert matrix_bytes(pack(raw, CPU)) <= MORE_BYTES.get(name, 1.0) * len(raw.data)


@pytest.mark.parametrize("name", ["Q6_K", "MXFP4", "Q4_K", "Q3_K", "F16"])
def test_rows_can_be_stacked_cut_and_gathered(name: str) -> None:
    matrix = pack(tensor(name, n_out=12), CPU)
    whole = dequantised(matrix)
    again = stacked([rows_of(matrix, 0, 5), rows_of(matrix, 5, 12)])
    assert torch.equal(dequantised(again), whole)
    picked = gathered(matrix, torch.tensor([2, 0]), 3)
    assert torch.equal(dequantised(picked), torch.cat([whole[8:12], whole[:4]]))


def test_products_in_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = pack(tensor("Q8_0", n_out=37), CPU)
    x, bias = torch.randn(3, 512), torch.randn(37)
    want = x @ dequantised(matrix).T + bias
    monkeypatch.setattr("imp_server.backends.cuda.plain.weights.PIECE_BYTES", 4 * 512 * 5)
    out = torch.empty(3, 60)
    multiply(x, matrix, bias, out[:, 10:47])
    torch.testing.assert_close(out[:, 10:47], want)


def test_floats_of_eight_and_four_bits() -> None:
    """By hand: 0x38 is 1, 0x40 2, 0xC4 -3 in E4M3."""
    codes = torch.tensor([[0x38, 0x40, 0xC4, 0x00] * 8], dtype=torch.uint8).view(1, 1, 32)
    eight = PackedMatrix("FP8", 1, 32, codes, scale=torch.tensor([0.5]))
    assert dequantised(eight)[0, :4].tolist() == [0.5, 1.0, -1.5, 0.0]
    nibbles = torch.full((1, 1, 16), 0xD2, dtype=torch.uint8)  # low 2 = 1.0, high 13 = -3
    scales = torch.tensor([[[0x38, 0x40]]], dtype=torch.uint8)
    four = PackedMatrix("NVFP4", 1, 32, nibbles, scale=scales, whole_scale=0.25)
    assert dequantised(four)[0].tolist() == [0.25] * 16 + [-1.5] * 16


def test_a_type_without_a_format_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="type IQ2_XS"):
        check_packable("IQ2_XS")
