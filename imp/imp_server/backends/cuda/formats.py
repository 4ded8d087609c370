"""The packed weight formats: planes of bytes, rows first, that plain operations and kernels read alike.

A matrix [n_out, n_in] has its rows one after the other in each plane, so matrices of one format with the same n_in are
stacked by stacking their planes. n_in is whole blocks of 32 inputs (block formats only). Planes are contiguous and
begin at multiples of 256 bytes; numbers are little-endian.

    codes   8 bits   uint8 [n_out, n_blocks, 32]
            4 bits   uint8 [n_out, n_blocks, 16]: byte k holds input k (low nibble) and input 16 + k (high)
            2 bits   uint8 [n_out, n_blocks, 8]: byte j holds inputs j, 8 + j, 16 + j, 24 + j at bits 0, 2, 4, 6
            5 = 4 bits here and bit 4 in `high`; 6 = 4 here and bits 4-5 in `high`; 3 = 2 here and bit 2 in `high`
            floats   [n_out, n_in] of float16, bfloat16 or float32, whatever n_in
    high    1 bit    uint8 [n_out, n_blocks, 4]: bit k of the word is input k's
            2 bits   uint8 [n_out, n_blocks, 8]: laid out as 2 bits above
    scale   f16      float16 [n_out, n_blocks]
            e8m0     uint8 [n_out, n_blocks]: e stands for 2^(e - 128), half of what files say, as the table is doubled
            two      float16 [n_out, n_supers], n_supers = ceil(n_blocks / 8), with sub_scale
            row      float32 [n_out]
            e4m3     uint8 [n_out, n_blocks, 2], float8 E4M3 of groups of 16, times `whole_scale`
    minimum          float16, shaped like `scale`; only where the format has minima
    sub_scale        int8 [n_out, n_blocks, groups], groups = 32 / group
    sub_minimum      int8, the same; 0 to 63

A weight is s * v + m. v: the code - zero; with a table, table[code]; of `float8`, the code's bits as E4M3 (finite, no
infinities). s: scale; of `two` float32(scale) * float32(sub_scale); of `e4m3` float32(scale) * whole_scale. m: 0;
minimum; of `two` -(float32(minimum) * float32(sub_minimum)). Products and the sum are float32, rounded one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLOCK = 32
SUPER_BLOCKS = 8

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
E2M1 = tuple(0.5 * value for value in DOUBLED_E2M1)


@dataclass(frozen=True, slots=True)
class Format:
    """`group`: inputs under one scale. See the head of this file."""

    bits: Literal[2, 3, 4, 5, 6, 8]
    group: Literal[16, 32] = 32
    minimum: bool = False
    zero: int = 0
    table: tuple[float, ...] = ()
    scales: Literal["f16", "e8m0", "two", "row", "e4m3"] = "f16"
    float8: bool = False

    @property
    def n_groups(self) -> int:
        return BLOCK // self.group

    @property
    def low_bits(self) -> int:
        """Of a code, those in the plane `codes`."""
        return {2: 2, 3: 2, 8: 8}.get(self.bits, 4)

    @property
    def high_bits(self) -> int:
        return self.bits - self.low_bits


FORMATS: dict[str, Format] = {
    "Q4_0": Format(4, zero=8),
    "Q4_1": Format(4, minimum=True),
    "Q4_K": Format(4, minimum=True, scales="two"),
    "Q2_K": Format(2, group=16, minimum=True, scales="two"),
    "Q3_K": Format(3, group=16, zero=4, scales="two"),
    "IQ4_NL": Format(4, table=IQ4_VALUES),
    "IQ4_XS": Format(4, table=IQ4_VALUES, scales="two"),
    "MXFP4": Format(4, table=DOUBLED_E2M1, scales="e8m0"),
    "Q8_0": Format(8, zero=128),
    "Q5_0": Format(5, zero=16),
    "Q5_1": Format(5, minimum=True),
    "Q5_K": Format(5, minimum=True, scales="two"),
    "Q6_K": Format(6, group=16, zero=32, scales="two"),
    "FP8": Format(8, scales="row", float8=True),
    "NVFP4": Format(4, group=16, table=E2M1, scales="e4m3"),
}
"""By the type of tensor that is packed so. No file has tensors that become FP8 or NVFP4 yet."""

FLOATS = ("F16", "BF16", "F32")
"""Formats whose only plane is `codes`."""
