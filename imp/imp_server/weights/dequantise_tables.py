"""Types whose 4-bit codes index a table of levels, and the small floats that scale them."""

from __future__ import annotations

import numpy as np

from imp_server.weights.blocks import Bytes, Floats, bits_of, field, half, nibbles

NL_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
"""IQ4_NL and IQ4_XS."""
E2M1_LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
"""The 4-bit float of MXFP4 and NVFP4 (OCP Microscaling Formats 1.0, 5.3.3)."""


def e8m0(code: Bytes) -> Floats:
    """2^(code - 127); 0 gives 2^-127, a subnormal. 255 is NaN in the standard; ggml reads it as 2^128 = inf."""
    wide = code.astype(np.uint32)
    return np.where(code == 0, np.uint32(0x00400000), wide << np.uint32(23)).view(np.float32)


def _e8m0_half(code: Bytes) -> Floats:
    """Half of the scale, which stays finite for every code that ggml writes."""
    wide = code.astype(np.uint32)
    return np.where(code < 2, np.uint32(0x00200000) << wide, (wide - 1) << np.uint32(23)).view(np.float32)


def e4m3_unsigned(code: Bytes) -> Floats:
    """Unsigned 8-bit float, 4 bits of exponent (bias 7), 3 of mantissa; 0x7F (NaN) counts as 0, as in ggml."""
    exponent = ((code >> 3) & 15).astype(np.int32)
    mantissa = (code & 7).astype(np.float32)
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / 8, exponent - 7))
    return np.where((code == 0) | (code == 0x7F), np.float32(0), value).astype(np.float32)


def iq4_nl(blocks: Bytes) -> Floats:
    """f16 scale, 16 bytes of codes."""
    return half(blocks, 0) * NL_LEVELS[nibbles(blocks[:, 2:])]


def iq4_xs(blocks: Bytes) -> Floats:
    """f16 scale, 16 bits of high and 4 bytes of low bits of eight 6-bit scales, 128 bytes of codes."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    high = (field(blocks, 2, 4, "<u2") >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scales = (low | (high << 4)).astype(np.float32) - np.float32(32)
    values = NL_LEVELS[bits_of(blocks[:, 8:].reshape(-1, 8, 16), 4).reshape(-1, 8, 32)]
    weights: Floats = (half(blocks, 0) * scales)[:, :, None] * values
    return weights.reshape(len(blocks), 256)


def mxfp4(blocks: Bytes) -> Floats:
    """E8M0 scale, 16 bytes of codes (low halves first)."""
    return _e8m0_half(blocks[:, :1]) * (2 * E2M1_LEVELS[nibbles(blocks[:, 1:])])


def nvfp4(blocks: Bytes) -> Floats:
    """Four unsigned E4M3 scales, then four groups of 8 bytes, each 16 codes (low halves first)."""
    scales = e4m3_unsigned(blocks[:, :4])
    codes = bits_of(blocks[:, 4:].reshape(-1, 4, 8), 4).reshape(-1, 4, 16)
    return (scales[:, :, None] * E2M1_LEVELS[codes]).reshape(len(blocks), 64)
