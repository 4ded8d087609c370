"""Folders of safetensors: every packing people have, and parts that don't fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from imp_server.core import UserFault
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.elements import float8_values
from imp_server.weights.header import read_header
from imp_server.weights.hf_folder import HfFolder
from imp_server.weights.packed_ints import AWQ_ORDER, unpack

from tests.weights.packing import folder, pack

RNG = np.random.default_rng(7)
Floats = npt.NDArray[np.float32]


def read(path: Path, name: str = "m.layers.0.w.weight") -> Floats:
    return Checkpoint(HfFolder(path)).array(name)


def ints(*shape: int, low: int = 0, high: int = 256, kind: Any = np.int64) -> npt.NDArray[Any]:
    return RNG.integers(low, high, shape).astype(kind)


def halfs(*shape: int) -> torch.Tensor:
    return torch.from_numpy(RNG.uniform(0.01, 0.1, shape).astype(np.float16))


# --- plain types ---------------------------------------------------------------------------------

PLAIN = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int32]


@pytest.mark.parametrize("dtype", PLAIN)
def test_plain_types(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = (torch.randn(3, 5) * 50).to(dtype)
    out = read(folder(tmp_path / "m", {"norm": tensor}), "norm")
    np.testing.assert_array_equal(out, tensor.float().numpy())
    assert out.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_tables_are_torchs(dtype: str) -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float().numpy()
    ours = float8_values("F8_E4M3" if "e4m3" in dtype else "F8_E5M2")
    np.testing.assert_array_equal(ours, theirs)


# --- packings: each beside a twin that goes element by element ------------------------------------


def fp8(rows: int, columns: int) -> tuple[torch.Tensor, Floats]:
    weight = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    return weight, weight.float().numpy()


@pytest.mark.parametrize(("rows", "columns"), [(256, 128), (200, 300), (5, 7)])
def test_fp8_in_blocks(rows: int, columns: int, tmp_path: Path) -> None:
    weight, plain = fp8(rows, columns)
    scale = torch.rand(-(-rows // 128), -(-columns // 128)) + 0.5
    path = folder(
        tmp_path / "m",
        {"m.layers.0.w.weight": weight, "m.layers.0.w.weight_scale_inv": scale},
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
    expected = [[plain[r, c] * scale[r // 128, c // 128].item() for c in range(columns)] for r in range(rows)]
    np.testing.assert_array_equal(read(path), np.array(expected, dtype=np.float32))
    header = read_header(path)
    assert header.quantisation == "F8_E4M3 scaled" and header.n_parameters == rows * columns


def test_fp8_blocks_of_another_size(tmp_path: Path) -> None:
    weight, plain = fp8(10, 12)
    scale = torch.rand(3, 3) + 0.5
    groups = {"group_0": {"weights": {"strategy": "block", "block_structure": [4, 5]}}}
    path = folder(
        tmp_path / "m",
        {"m.layers.0.w.weight": weight, "m.layers.0.w.weight_scale": scale},
        quantization_config={"quant_method": "compressed-tensors", "config_groups": groups},
    )
    expected = [[plain[r, c] * scale[r // 4, c // 5].item() for c in range(12)] for r in range(10)]
    np.testing.assert_array_equal(read(path), np.array(expected, dtype=np.float32))


@pytest.mark.parametrize("shape", [(), (1,), (6, 1), (6,), (6, 4)])
def test_fp8_and_int8_with_scales(shape: tuple[int, ...], tmp_path: Path) -> None:
    scale = torch.rand(shape) + 0.5
    full = np.broadcast_to(
        np.repeat(scale.numpy(), 2, axis=1) if shape == (6, 4) else scale.numpy().reshape(-1, 1), (6, 8)
    )
    weight, plain = fp8(6, 8)
    path = folder(tmp_path / "a", {"m.layers.0.w.weight": weight, "m.layers.0.w.weight_scale": scale})
    np.testing.assert_array_equal(read(path), plain * full)
    integers = torch.from_numpy(ints(6, 8, low=-128, high=128, kind=np.int8))
    path = folder(tmp_path / "b", {"m.layers.0.w.weight": integers, "m.layers.0.w.weight_scale": scale})
    np.testing.assert_array_equal(read(path), integers.float().numpy() * full)


def test_int8_with_zero_points(tmp_path: Path) -> None:
    weight, zero = ints(4, 8, low=-128, high=128, kind=np.int8), ints(4, 1, low=-9, high=9, kind=np.int8)
    scale = torch.rand(4, 1)
    tensors = {
        "m.layers.0.w.weight": torch.from_numpy(weight),
        "m.layers.0.w.weight_scale": scale,
        "m.layers.0.w.weight_zero_point": torch.from_numpy(zero),
    }
    expected = (weight.astype(np.float32) - zero) * scale.numpy()
    np.testing.assert_array_equal(read(folder(tmp_path / "m", tensors)), expected)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_unpack_is_the_inverse_of_pack(bits: int, axis: int) -> None:
    values = ints(32, 32, high=1 << bits)
    np.testing.assert_array_equal(unpack(pack(values, bits, axis).numpy(), bits, axis), values)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("order", [False, True])
def test_compressed_tensors_int(bits: int, zeros: bool, order: bool, tmp_path: Path) -> None:
    rows, columns, group = 8, 36, 12
    half = 1 << (bits - 1)
    q = ints(rows, columns, low=-half, high=half)
    z = ints(rows, columns // group, low=-half, high=half) if zeros else np.zeros((rows, columns // group), dtype=int)
    scale = halfs(rows, columns // group)
    index = RNG.permutation(columns) % (columns // group) if order else np.arange(columns) // group
    tensors = {
        "m.layers.0.w.weight_packed": pack(q + half, bits, 1),
        "m.layers.0.w.weight_scale": scale,
        "m.layers.0.w.weight_shape": torch.tensor([rows, columns]),
    }
    if zeros:
        tensors["m.layers.0.w.weight_zero_point"] = pack(z + half, bits, 0)
    if order:
        tensors["m.layers.0.w.weight_g_idx"] = torch.from_numpy(index.astype(np.int32))
    expected = [
        [np.float32(q[r, c] - z[r, index[c]]) * np.float32(scale[r, index[c]]) for c in range(columns)]
        for r in range(rows)
    ]
    path = folder(tmp_path / "m", tensors, quantization_config={"quant_method": "compressed-tensors"})
    np.testing.assert_array_equal(read(path), np.array(expected, dtype=np.float32))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("order", [False, True])
def test_gptq(bits: int, version: str, order: bool, tmp_path: Path) -> None:
    rows, columns, group = 16, 32, 8
    q, z = ints(columns, rows, high=1 << bits), ints(columns // group, rows, high=1 << bits)
    scale = halfs(columns // group, rows)
    index = RNG.permutation(columns) // group if order else np.arange(columns) // group
    tensors = {
        "m.layers.0.w.qweight": pack(q, bits, 0),
        "m.layers.0.w.qzeros": pack(z, bits, 1),
        "m.layers.0.w.scales": scale,
        "m.layers.0.w.g_idx": torch.from_numpy(index.astype(np.int32)),
    }
    plus = 1 if version == "gptq" else 0
    expected = [
        [np.float32(q[c, r] - z[index[c], r] - plus) * np.float32(scale[index[c], r]) for c in range(columns)]
        for r in range(rows)
    ]
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version}
    path = folder(tmp_path / "m", tensors, quantization_config=config)
    np.testing.assert_array_equal(read(path), np.array(expected, dtype=np.float32))


def test_awq(tmp_path: Path) -> None:
    rows, columns, group = 16, 24, 8
    q, z, scale = ints(columns, rows, high=16), ints(columns // group, rows, high=16), halfs(columns // group, rows)
    tensors = {
        "m.layers.0.w.qweight": pack(q, 4, 1, AWQ_ORDER),
        "m.layers.0.w.qzeros": pack(z, 4, 1, AWQ_ORDER),
        "m.layers.0.w.scales": scale,
        "m.layers.0.w.bias": halfs(rows),
    }
    expected = [
        [np.float32(q[c, r] - z[c // group, r]) * np.float32(scale[c // group, r]) for c in range(columns)]
        for r in range(rows)
    ]
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    checkpoint = Checkpoint(HfFolder(folder(tmp_path / "m", tensors, quantization_config=config)))
    assert set(checkpoint.names()) == {"m.layers.0.w.weight", "m.layers.0.w.bias"}
    np.testing.assert_array_equal(checkpoint.array("m.layers.0.w.weight"), np.array(expected, dtype=np.float32))


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_mxfp4_experts_are_transformers_experts(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.from_numpy(ints(3, 4, 2, 16, kind=np.uint8))
    scales = torch.from_numpy(ints(3, 4, 2, low=110, high=140, kind=np.uint8))
    tensors = {
        "m.layers.0.mlp.experts.gate_up_proj_blocks": blocks,
        "m.layers.0.mlp.experts.gate_up_proj_scales": scales,
    }
    ours = read(folder(tmp_path / "m", tensors), "m.layers.0.mlp.experts.gate_up_proj")
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("style", ["modelopt", "compressed-tensors"])
def test_nvfp4(style: str, tmp_path: Path) -> None:
    rows, columns = 4, 32
    codes = ints(rows, columns, high=16)
    packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))
    scale = (torch.rand(rows, columns // 16) + 0.5).to(torch.float8_e4m3fn)
    whole = torch.tensor(0.25)
    base = "m.layers.0.w."
    if style == "modelopt":
        tensors = {base + "weight": packed, base + "weight_scale": scale, base + "weight_scale_2": whole}
        factor = scale.float().numpy() * np.float32(0.25)
    else:
        tensors = {base + "weight_packed": packed, base + "weight_scale": scale, base + "weight_global_scale": whole}
        factor = scale.float().numpy() * np.float32(4.0)
    tensors[base + "input_scale"] = torch.tensor(1.0)
    expected = [[np.float32(E2M1[codes[r, c]]) * factor[r, c // 16] for c in range(columns)] for r in range(rows)]
    path = folder(tmp_path / "m", tensors, quantization_config={"quant_method": style})
    np.testing.assert_array_equal(read(path), np.array(expected, dtype=np.float32))


def test_mxfp4_of_compressed_tensors(tmp_path: Path) -> None:
    codes = ints(4, 64, high=16)
    packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))
    scale = torch.from_numpy(ints(4, 2, low=120, high=132, kind=np.uint8))
    path = folder(tmp_path / "m", {"m.layers.0.w.weight_packed": packed, "m.layers.0.w.weight_scale": scale})
    expected = [[E2M1[codes[r, c]] * 2.0 ** (int(scale[r, c // 32]) - 127) for c in range(64)] for r in range(4)]
    np.testing.assert_array_equal(read(path), np.array(expected, dtype=np.float32))


PART_FAULTS: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any], str]] = {
    "no scales": ({"w.weight_packed": torch.zeros(2, 2, dtype=torch.int32)}, {}, r"w\.weight_scale' is missing"),
    "int8": ({"w.weight": torch.zeros(2, 2, dtype=torch.int8)}, {}, "int8 without scales"),
    "method": ({"w.qweight": torch.zeros(2, 2, dtype=torch.int32)}, {"quant_method": "eetq"}, "eetq"),
    "bits": ({"w.qweight": torch.zeros(2, 2, dtype=torch.int32)}, {"quant_method": "gptq", "bits": 3}, "3 bits"),
    "gemv": (
        {"w.qweight": torch.zeros(2, 2, dtype=torch.int32)},
        {"quant_method": "awq", "version": "gemv"},
        "gemv",
    ),
    "grid": (
        {"w.weight": torch.zeros(4, 4).to(torch.float8_e4m3fn), "w.weight_scale": torch.zeros(3, 3)},
        {},
        r"'w\.weight' \(3, 3\)",
    ),
    "parts": (
        {"w.weight_packed": torch.zeros(2, 2, dtype=torch.int32), "w.weight_scale": torch.zeros(5, 2)},
        {},
        r"w\.weight",
    ),
    "g_idx": (
        {
            "w.qweight": torch.zeros(1, 8, dtype=torch.int32),
            "w.qzeros": torch.zeros(1, 1, dtype=torch.int32),
            "w.scales": torch.zeros(1, 8),
            "w.g_idx": torch.full((8,), 9, dtype=torch.int32),
        },
        {"quant_method": "gptq", "bits": 4},
        r"w\.weight.*g_idx",
    ),
}


@pytest.mark.parametrize("name", PART_FAULTS)
def test_parts_that_do_not_fit(name: str, tmp_path: Path) -> None:
    tensors, config, words = PART_FAULTS[name]
    path = folder(tmp_path / "m", tensors, quantization_config=config)
    with pytest.raises(UserFault, match=words):
        read_everything(path)


def read_everything(path: Path) -> None:
    checkpoint = Checkpoint(HfFolder(path))
    for tensor in checkpoint.names():
        checkpoint.array(tensor)
