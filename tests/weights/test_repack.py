"""Packed checkpoint weights as GGUF blocks: the same numbers to the bit, or not packed at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.models.opening import open_model
from imp_server.models.source import CheckpointSource, RawTensor
from imp_server.models.tensor_names import TensorPlace
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.dequantise import dequantise
from imp_server.weights.float_blocks import Microscaled
from imp_server.weights.ggml_types import BY_NAME
from imp_server.weights.header import read_header
from imp_server.weights.hf_folder import HfFolder
from imp_server.weights.packed_ints import AWQ_ORDER, Grouped
from imp_server.weights.repack import repack
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.backends.driver import Driver
from tests.weights.packing import folder, pack

ROWS, COLUMNS, GROUP = 16, 128, 64
W = "m.layers.0.w."
Stored = tuple[dict[str, torch.Tensor], dict[str, Any]]
RNG = np.random.default_rng(11)


def ints(shape: tuple[int, ...], low: int, high: int) -> npt.NDArray[np.int64]:
    """Both ends of [low, high) are there."""
    values = RNG.integers(low, high, shape)
    values.flat[0], values.flat[1] = low, high - 1
    return values


def scales(*shape: int) -> torch.Tensor:
    return torch.from_numpy(RNG.uniform(-0.1, 0.1, shape).astype(np.float16))


def gptq(
    bits: int = 4, *, version: str = "gptq", zero: int | None = None, group: int = GROUP, index: Any = None
) -> Stored:
    n_groups = COLUMNS // group
    zero = (1 << (bits - 1)) if zero is None else zero
    zeros = np.full((n_groups, ROWS), zero - (version == "gptq"))
    tensors = {
        W + "qweight": pack(ints((COLUMNS, ROWS), 0, 1 << bits), bits, 0),
        W + "qzeros": pack(zeros, bits, 1),
        W + "scales": scales(n_groups, ROWS),
    }
    if index is not None:
        tensors[W + "g_idx"] = torch.from_numpy(np.asarray(index, dtype=np.int32))
    return tensors, {"quant_method": "gptq", "bits": bits, "checkpoint_format": version}


def awq(zero: int = 8) -> Stored:
    n_groups = COLUMNS // GROUP
    tensors = {
        W + "qweight": pack(ints((COLUMNS, ROWS), 0, 16), 4, 1, AWQ_ORDER),
        W + "qzeros": pack(np.full((n_groups, ROWS), zero), 4, 1, AWQ_ORDER),
        W + "scales": scales(n_groups, ROWS),
    }
    return tensors, {"quant_method": "awq", "bits": 4}


def compressed(bits: int = 4, scale: torch.Tensor | None = None, columns: int = COLUMNS) -> Stored:
    tensors = {
        W + "weight_packed": pack(ints((ROWS, columns), 0, 1 << bits), bits, 1),
        W + "weight_scale": scales(ROWS, columns // GROUP) if scale is None else scale,
        W + "weight_shape": torch.tensor([ROWS, columns]),
    }
    return tensors, {"quant_method": "compressed-tensors"}


def int8(scale: torch.Tensor, **more: torch.Tensor) -> Stored:
    weight = torch.from_numpy(ints((ROWS, COLUMNS), -128, 128).astype(np.int8))
    parts = {W + name: tensor for name, tensor in more.items()}
    return {W + "weight": weight, W + "weight_scale": scale, **parts}, {}


def codes(*shape: int, high: int = 255) -> torch.Tensor:
    return torch.from_numpy(ints(shape, 0, high).astype(np.uint8))


def mxfp4(highest_scale: int = 254) -> Stored:
    tensors = {
        W + "weight_packed": codes(ROWS, 64, high=256),
        W + "weight_scale": codes(ROWS, 4, high=highest_scale + 1),
    }
    return tensors, {}


def experts() -> Stored:
    return {
        "m.layers.0.w.weight_blocks": codes(3, 8, 2, 16, high=256),
        "m.layers.0.w.weight_scales": codes(3, 8, 2),
    }, {}


IN_ORDER = np.arange(COLUMNS) // GROUP
EXACT: dict[str, tuple[Callable[[], Stored], str]] = {
    "gptq": (gptq, "Q4_0"),
    "gptq_v2": (lambda: gptq(version="gptq_v2"), "Q4_0"),
    "gptq in order": (lambda: gptq(index=IN_ORDER), "Q4_0"),
    "gptq whole blocks swapped": (lambda: gptq(index=IN_ORDER[::-1].copy()), "Q4_0"),
    "gptq int8": (lambda: gptq(8), "Q8_0"),
    "awq": (awq, "Q4_0"),
    "compressed int4": (compressed, "Q4_0"),
    "compressed int8": (lambda: compressed(8), "Q8_0"),
    "compressed per channel": (lambda: compressed(4, scales(ROWS, 1)), "Q4_0"),
    "bf16 scales": (lambda: compressed(4, scales(ROWS, 2).to(torch.bfloat16)), "Q4_0"),
    "int8 per tensor": (lambda: int8(scales()), "Q8_0"),
    "int8 per channel": (lambda: int8(scales(ROWS, 1)), "Q8_0"),
    "int8 per channel, flat": (lambda: int8(scales(ROWS)), "Q8_0"),
    "int8 groups": (lambda: int8(scales(ROWS, 4)), "Q8_0"),
    "int8 zero points of zero": (
        lambda: int8(scales(ROWS, 1), weight_zero_point=torch.zeros(ROWS, 1, dtype=torch.int8)),
        "Q8_0",
    ),
    "mxfp4": (mxfp4, "MXFP4"),
    "mxfp4 experts": (experts, "MXFP4"),
}
INEXACT: dict[str, Callable[[], Stored]] = {
    "zero point": lambda: gptq(zero=7),
    "awq zero point": lambda: awq(9),
    "columns in another order": lambda: gptq(index=np.random.default_rng(0).permutation(COLUMNS) // GROUP),
    "groups of 16": lambda: gptq(group=16),
    "int2": lambda: gptq(2),
    "float32 scales": lambda: compressed(4, torch.full((ROWS, 2), 0.1)),
    "scales beyond float16": lambda: compressed(4, torch.full((ROWS, 2), 2.0**20)),
    "columns that don't fill a block": lambda: compressed(4, scales(ROWS, 1), columns=72),
    "int8 zero points": lambda: int8(scales(ROWS, 1), weight_zero_point=torch.ones(ROWS, 1, dtype=torch.int8)),
    "int8 float32 scales": lambda: int8(torch.full((ROWS, 1), 0.1)),
    "int8 scales in a grid": lambda: (int8(scales(2, 2))[0], {"weight_block_size": [8, 64]}),
    "mxfp4 scale of 255": lambda: mxfp4(255),
    "mxfp4 scales in wide integers": lambda: ({**mxfp4()[0], W + "weight_scale": codes(ROWS, 4).int()}, {}),
}


@pytest.fixture(autouse=True)
def same_numbers_in_any_order() -> None:
    RNG.bit_generator.state = np.random.default_rng(11).bit_generator.state


def source(stored: Stored, path: Path) -> CheckpointSource:
    """The one tensor as `q`."""
    folder(path, stored[0], quantization_config=stored[1])
    architecture = cast(Any, None)  # not looked at for tensors
    return CheckpointSource(
        Checkpoint(HfFolder(path)), read_header(path), architecture, {"q": TensorPlace(W + "weight")}
    )


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.filterwarnings("ignore:overflow")  # MXFP4's largest scales reach infinity, here as there
def test_the_same_numbers_to_the_bit(name: str, tmp_path: Path) -> None:
    make, type_name = EXACT[name]
    model = source(make(), tmp_path / "m")
    raw, expected = model.raw("q"), model.array("q")
    assert raw.type.name == type_name and raw.shape == expected.shape
    got = dequantise(raw.type, raw.data).reshape(raw.shape)
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", INEXACT)
@pytest.mark.filterwarnings("ignore:(overflow|invalid)")
def test_what_would_not_be_exact_stays_float32(name: str, tmp_path: Path) -> None:
    model = source(INEXACT[name](), tmp_path / "m")
    raw, expected = model.raw("q"), model.array("q")
    assert raw.type.name == "F32" and raw.shape == expected.shape
    np.testing.assert_array_equal(raw.data.view(np.uint32).reshape(raw.shape), expected.view(np.uint32))


@pytest.mark.parametrize("bits", [4, 8])
def test_the_bytes_are_those_of_the_gguf_package(bits: int) -> None:
    """Its quantiser finds the scale again in blocks that reach the end of the range."""
    end = {4: -8, 8: 127}[bits]
    values = RNG.integers(-7 if bits == 4 else -127, 8 if bits == 4 else 128, (ROWS, COLUMNS))
    values[:, ::32] = end
    weight = Grouped(values, 2.0 ** RNG.integers(-9, -2, (ROWS, 2)).astype(np.float32), IN_ORDER, bits)
    kind = {4: gguf.GGMLQuantizationType.Q4_0, 8: gguf.GGMLQuantizationType.Q8_0}[bits]
    packed = repack(weight)
    assert packed is not None and packed.type_name == kind.name
    np.testing.assert_array_equal(packed.data, gguf.quants.quantize(weight.floats(), kind).reshape(-1))


def test_the_bytes_of_mxfp4_are_those_of_the_gguf_package() -> None:
    blocks = RNG.integers(0, 8, (ROWS, 4, 16), dtype=np.uint8) | (RNG.integers(9, 16, (ROWS, 4, 16)) << 4).astype(
        np.uint8
    )
    blocks[:, :, 0] = 0x97  # the largest level, from which the quantiser finds the scale
    weight = Microscaled(blocks, RNG.integers(100, 150, (ROWS, 4), dtype=np.uint8))
    packed = repack(weight)
    assert packed is not None
    theirs = gguf.quants.quantize(weight.floats(), gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(packed.data, theirs.reshape(-1))


class AsFloats:
    """The same model, each tensor multiplied out."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __contains__(self, name: str) -> bool:
        return name in self._model

    def raw(self, name: str) -> RawTensor:
        array = np.ascontiguousarray(self._model.array(name))
        return RawTensor(BY_NAME["F32"], array.shape, array.view(np.uint8).reshape(-1))


def test_an_int4_folder_runs_packed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        rows, columns = tensors.pop(name).shape
        base = name.removesuffix("weight")
        tensors[base + "weight_packed"] = pack(ints((rows, columns), 0, 16), 4, 1)
        tensors[base + "weight_scale"] = torch.from_numpy(
            RNG.uniform(0.02, 0.05, (rows, columns // 32)).astype(np.float16)
        )
        tensors[base + "weight_shape"] = torch.tensor([rows, columns])
    save_file(tensors, tmp_path / "model.safetensors")
    model = open_model(tmp_path)
    assert {model.raw(f"layers.1.{n}").type.name for n in ("q", "k", "v", "o", "gate", "up", "down")} == {"Q4_0"}
    ids = RNG.integers(0, 64, 40).tolist()
    packed, plain = (Driver(CpuBackend(cast(Any, m))).logits(ids, chunk=7) for m in (model, AsFloats(model)))
    error = float(np.sqrt(np.mean((packed - plain) ** 2) / np.mean(plain**2)))
    assert error < 0.05  # activations in 8 bits: 0.023 to 0.028 over six seeds; a wrong order of codes gives about 1
    assert (packed != plain).any()  # the two did take different routes
