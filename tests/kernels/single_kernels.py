"""The kernels one by one (kernels/cpu/engine/api_kernels.cpp) on torch tensors."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_void_p

import numpy as np
import torch
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.errors import KernelError
from imp_server.backends.cpu.mixers import kv_form
from imp_server.backends.cpu.packing import pack, packed_shape
from imp_server.backends.kv_layout import ELEMENT_TYPES, layer_place
from imp_server.models.mixers import Attention
from imp_server.models.source import RawTensor

from tests.kernels.torch_twins import Rule

NORMS = ("rms", "layer")
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu2")
KV = ("bf16", "int8")


class _Rule(ctypes.Structure):
    _fields_ = [("scale", c_float), ("softcap", c_float), ("window", c_int32)]


def _at(x: torch.Tensor | None) -> c_void_p:
    assert x is None or x.is_contiguous()
    return c_void_p(None if x is None else x.data_ptr())


def normalise(
    isa: str, kind: str, eps: float, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    out = torch.empty_like(x)
    arguments = _at(weight), _at(bias), _at(x), c_int32(len(x)), c_int32(x.shape[1]), _at(out)
    abi.library(isa).imp_cpu_normalise(c_int32(NORMS.index(kind)), c_float(eps), *arguments)
    return out


def rotate(
    isa: str, heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    out, table = heads.clone(), torch.cat([cosine, sine], 1)
    sizes = (c_int32(n) for n in (*heads.shape, table.shape[1], interleaved))
    abi.library(isa).imp_cpu_rotate(_at(out), *sizes, _at(table))
    return out


def activate(isa: str, kind: str, gate: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(gate)
    abi.library(isa).imp_cpu_activate(c_int32(ACTIVATIONS.index(kind)), _at(gate), c_int32(len(gate)), _at(out))
    return out


def attend(
    isa: str,
    rule: Rule,
    kv_dtype: str,
    q: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The cache's blocks lie in an order of their own."""
    n_blocks = -(-len(keys) // 16)
    table = torch.randperm(n_blocks, generator=torch.Generator().manual_seed(1)).int()
    out, positions = torch.empty_like(q), positions.int()
    queries = _at(q), _at(positions), c_int32(len(q))
    cache = _at(keys), _at(values), c_int32(len(keys)), _at(table)
    place = layer_place(Attention(1, 1, q.shape[1]).cached(), ELEMENT_TYPES[kv_dtype], 16)
    code = abi.library(isa).imp_cpu_attend(
        ctypes.byref(kv_form(kv_dtype, place)),
        ctypes.byref(_Rule(*rule)),
        *queries,
        *cache,
        _at(sinks),
        _at(out),
    )
    assert code == KernelError.ok
    return out


class PackedMatrix:
    def __init__(self, raw: RawTensor, isa: str) -> None:
        self._library = abi.library(isa)
        self.shape = s = packed_shape(raw.type.name, raw.shape, "none")
        room = np.zeros(s.nbytes + 4096, dtype=np.uint8)
        self._bytes = room[-room.ctypes.data % 64 :][: s.nbytes]
        pack(raw, s, self._bytes)
        self._matrix = abi.Matrix(self._bytes.ctypes.data, s.panel_bytes, s.format_index, s.n_out, s.n_in, s.n_blocks)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(x), self.shape.n_out)
        arguments = ctypes.byref(self._matrix), _at(x), len(x), _at(out)
        assert self._library.imp_cpu_multiply(*arguments) == KernelError.ok
        return out

    def rows(self, first: int, n: int) -> torch.Tensor:
        out = torch.empty(n, self.shape.n_in)
        self._library.imp_cpu_dequantise(ctypes.byref(self._matrix), first, n, _at(out))
        return out
