"""Elements of safetensors types as float32 or integers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel
from imp_server.weights.blocks import Bytes, Floats
from imp_server.weights.dequantise_tables import e8m0

_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
FLOAT8 = ("F8_E4M3", "F8_E5M2")


@cache
def float8_values(dtype: str) -> Floats:
    """The 256 values of an 8-bit float (OCP 8-bit Floating Point 1.0): E4M3 has no infinities, E5M2 has."""
    exponent_bits, bias = (4, 7) if dtype == "F8_E4M3" else (5, 15)
    mantissa_bits = 7 - exponent_bits
    code = np.arange(256)
    sign = np.where(code & 0x80, -1.0, 1.0)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    value = sign * np.where(exponent == 0, np.ldexp(mantissa, 1 - bias), np.ldexp(1 + mantissa, exponent - bias))
    magnitude = code & 0x7F
    if dtype == "F8_E4M3":
        value[magnitude == 0x7F] = np.nan
    else:
        value[magnitude == 0x7C] = np.copysign(np.inf, sign[magnitude == 0x7C])
        value[magnitude > 0x7C] = np.nan
    return value.astype(np.float32)


def floats(dtype: str, data: Bytes) -> Floats:
    """Flat float32."""
    if dtype == "BF16":
        return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in FLOAT8:
        return float8_values(dtype)[data]
    if dtype == "F8_E8M0":
        return e8m0(data)
    return data.view(_NUMPY[dtype]).astype(np.float32)


def integers(dtype: str, data: Bytes) -> npt.NDArray[Any]:
    """Flat, in their own width, a view."""
    if dtype not in _NUMPY or dtype[0] == "F":
        raise InvalidModel(f"a tensor of the type {dtype} stands where integers are expected")
    return data.view(_NUMPY[dtype])
