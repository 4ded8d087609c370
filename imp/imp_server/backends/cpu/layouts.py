"""The packed layouts, in the words of kernels/cpu/engine/formats.h, and the assembly of panels from their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]
SignedBytes = npt.NDArray[np.int8]

LAYOUT_VERSION = 3
PANEL_ROWS = 16
BLOCK = 32
LINE = 64

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""E2M1 doubled; the block scale is halved to match."""


SUPER_BLOCKS = 8
"""Blocks under one f16 scale of two-level layouts."""

SPLIT = "Q8_0 split"
"""Of an 8-bit head whose upper 5 bits can be read alone (kernels/cpu/engine/head_plane.h)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A weight is scale * (value - zero) + minimum; see formats.h for the order of bytes."""

    index: int
    """FormatId."""
    bits: int
    group: int = 32
    minimum: bool = False
    zero: int = 0
    table: tuple[int, ...] = ()
    """Signed values of the 16 codes; the kernel's table has 128 added, and `zero` is 128."""
    scales: Literal["f16", "e8m0", "bytes", "nibbles", "sixes"] = "f16"
    """The last three: f16 d, dmin per 256, and those per group in so many bits."""
    split: bool = False

    @property
    def n_groups(self) -> int:
        return BLOCK // self.group

    @property
    def two_level(self) -> bool:
        return self.scales in ("bytes", "nibbles", "sixes")

    @property
    def unit_blocks(self) -> int:
        """Blocks that share a piece of the header."""
        return SUPER_BLOCKS if self.two_level else 1

    @property
    def unit_header(self) -> int:
        """Bytes of that piece."""
        if self.scales == "e8m0":
            return PANEL_ROWS
        n = 2 if self.minimum else 1
        if not self.two_level:
            return 2 * PANEL_ROWS * n
        n_groups = SUPER_BLOCKS * self.n_groups
        subs = {"bytes": 16 * n_groups * n, "nibbles": 16 * n_groups, "sixes": 12 * n_groups * n}
        return 2 * PANEL_ROWS * n + subs[self.scales]

    @property
    def span(self) -> int:
        """Blocks under one header: as many as make whole cache lines."""
        lines = {0: 1 if self.two_level else 2, 32: 2}.get(self.unit_header % LINE, 4)
        return self.unit_blocks * lines

    @property
    def stream_bits(self) -> int:
        """Bits of a value behind the headers; those of a split layout that are left follow all blocks."""
        return 5 if self.split else self.bits

    def header_bytes(self, n_blocks: int) -> int:
        return -(-(-(-n_blocks // self.unit_blocks) * self.unit_header) // LINE) * LINE

    def stream_bytes(self, n_blocks: int) -> int:
        headers = n_blocks // self.span * self.header_bytes(self.span) + self.header_bytes(n_blocks % self.span)
        return headers + n_blocks * self.stream_bits * LINE

    def panel_bytes(self, n_blocks: int) -> int:
        return self.stream_bytes(n_blocks) + n_blocks * (self.bits - self.stream_bits) * LINE


LAYOUTS: dict[str, Layout] = {
    "Q4_0": Layout(0, 4, zero=8),
    "Q4_1": Layout(1, 4, minimum=True),
    "Q4_K": Layout(2, 4, minimum=True, scales="sixes"),
    "Q2_K": Layout(3, 2, group=16, minimum=True, scales="nibbles"),
    "Q3_K": Layout(4, 3, group=16, zero=4, scales="sixes"),
    "IQ4_NL": Layout(5, 4, zero=128, table=IQ4_VALUES),
    "IQ4_XS": Layout(6, 4, zero=128, table=IQ4_VALUES, scales="sixes"),
    "MXFP4": Layout(7, 4, zero=128, table=MXFP4_VALUES, scales="e8m0"),
    "Q8_0": Layout(8, 8, zero=128),
    "Q5_0": Layout(9, 5, zero=16),
    "Q5_1": Layout(10, 5, minimum=True),
    "Q5_K": Layout(11, 5, minimum=True, scales="sixes"),
    "Q6_K": Layout(12, 6, group=16, zero=32, scales="bytes"),
}
"""By the type of tensor that is packed so."""
ALL_LAYOUTS = LAYOUTS | {SPLIT: Layout(13, 8, zero=128, split=True)}
FLOAT_LAYOUTS = {"F16": 14, "BF16": 15, "F32": 16}
"""Float panels: [input][16 outputs], inputs padded to whole blocks."""


@dataclass(slots=True)
class MatrixParts:
    """A matrix taken apart, rows first. Absent parts are None.

    `payload` [n_out, n_blocks, 32]: codes, one a byte. Plain scales `scale`, `minimum` [n_out, n_blocks] as the bits of
    f16, or e8m0 exponents; two-level `scale`, `minimum` [n_out, n_blocks / 8] as f16 bits and `sub_scale`,
    `sub_minimum` int8 [n_out, n_blocks, groups].
    """

    payload: Bytes
    scale: Halves | Bytes
    minimum: Halves | None = None
    sub_scale: SignedBytes | None = None
    sub_minimum: SignedBytes | None = None


def assemble(layout: Layout, parts: MatrixParts, out: Bytes) -> None:
    """Write panels to `out` [n_panels, panel_bytes]. Rows past n_out get scale 0 where the layout can say so."""
    n_blocks = parts.payload.shape[1]
    quads = _quads(parts.payload, len(out))
    stream, rest = out[:, : layout.stream_bytes(n_blocks)], out[:, layout.stream_bytes(n_blocks) :]
    if layout.split:
        rest[:] = _planes(quads & np.uint8(7), layout.bits - layout.stream_bits).reshape(rest.shape)
        quads = quads >> np.uint8(3)
    payload = _planes(quads, layout.stream_bits)
    headers = _headers(layout, parts, len(out), n_blocks)
    whole = n_blocks // layout.span * layout.span
    _lay_spans(layout, stream, headers, payload, 0, whole, layout.span)
    if whole < n_blocks:
        _lay_spans(layout, stream, headers, payload, whole, n_blocks, n_blocks - whole)


def assemble_floats(values: npt.NDArray[Any], out: Bytes) -> None:
    """Float panels: `values` [n_out, n_in] of a 2- or 4-byte type."""
    n_out, n_in = values.shape
    n_panels = len(out)
    target = out.view(values.dtype).reshape(n_panels, -1, PANEL_ROWS)
    target[:] = 0
    whole = n_out // PANEL_ROWS
    target[:whole, :n_in] = values[: whole * PANEL_ROWS].reshape(whole, PANEL_ROWS, n_in).transpose(0, 2, 1)
    if whole < n_panels:
        target[whole, :n_in, : n_out - whole * PANEL_ROWS] = values[whole * PANEL_ROWS :].T


def _lanes(values: npt.NDArray[Any], n_panels: int) -> npt.NDArray[Any]:
    """[n_out, ...] -> [n_panels, 16, ...], missing rows zero."""
    missing = n_panels * PANEL_ROWS - len(values)
    if missing:
        values = np.concatenate([values, np.zeros((missing, *values.shape[1:]), dtype=values.dtype)])
    return values.reshape(n_panels, PANEL_ROWS, *values.shape[1:])


def _quads(codes: Bytes, n_panels: int) -> Bytes:
    """Codes [n_out, blocks, 32] -> [n_panels, blocks, 8 quads, 64], lanes of four inputs."""
    words = np.ascontiguousarray(codes).view(np.uint32)
    moved = _lanes(words, n_panels).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(moved).view(np.uint8).reshape(n_panels, codes.shape[1], 8, 4 * PANEL_ROWS)


def _planes(quads: Bytes, bits: int) -> Bytes:
    """The bits of quads as lines [n_panels, blocks, bits, 64]."""
    if bits == 8:
        return quads
    if bits <= 3:
        lines, upper = _twos(quads & 3), 2
    else:
        lines, upper = _fours(quads[:, :, :4], quads[:, :, 4:]), 4
    if bits == upper:
        return lines
    above = quads >> upper
    more = _twos(above) if bits - upper == 2 else np.packbits(above, axis=2, bitorder="little")
    return np.concatenate([lines, more], axis=2)


def _fours(low: npt.NDArray[Any], high: npt.NDArray[Any]) -> Bytes:
    """The lower 4 bits of two as one byte."""
    return np.asarray((low & 15) | (high & 15) << 4, dtype=np.uint8)


def _twos(values: npt.NDArray[Any]) -> Bytes:
    """2-bit values [a, b, n, lanes] -> [a, b, n / 4, lanes]: four in a byte."""
    a, b, n, lanes = values.shape
    fours = values.reshape(a, b, n // 4, 4, lanes)
    return np.asarray(
        fours[..., 0, :] | fours[..., 1, :] << 2 | fours[..., 2, :] << 4 | fours[..., 3, :] << 6, np.uint8
    )


def _headers(layout: Layout, parts: MatrixParts, n_panels: int, n_blocks: int) -> Bytes:
    """The pieces of headers one after the other: [n_panels, units, unit_header]."""
    n_units = -(-n_blocks // layout.unit_blocks)

    def lanes(values: npt.NDArray[Any]) -> Bytes:
        """[n_out, units, ...] -> bytes [n_panels, units, ...], lanes innermost."""
        moved = np.moveaxis(_lanes(values, n_panels), 1, -1)
        return np.ascontiguousarray(moved).view(np.uint8).reshape(n_panels, n_units, -1)

    pieces = [lanes(parts.scale)] + ([] if parts.minimum is None else [lanes(parts.minimum)])
    if layout.two_level:
        assert parts.sub_scale is not None
        n = SUPER_BLOCKS * layout.n_groups
        offset = np.uint8(32 if layout.scales == "sixes" and not layout.minimum else 0)
        subs = [
            lanes(sub.view(np.uint8).reshape(len(sub), n_units, n) + offset).reshape(n_panels, n_units, n, PANEL_ROWS)
            for sub in (parts.sub_scale, parts.sub_minimum)
            if sub is not None
        ]
        pieces += _sub_pieces(layout, subs)
    return np.concatenate(pieces, axis=2)


def _sub_pieces(layout: Layout, subs: list[Bytes]) -> list[Bytes]:
    """Scales and minima of groups [n_panels, units, groups, 16] in the bits that the layout gives them."""
    n_panels, n_units, n, _ = subs[0].shape
    if layout.scales == "nibbles":
        subs = [subs[0] | subs[1] << np.uint8(4)]
    elif layout.scales == "sixes":
        lows = [_fours(six[:, :, : n // 2], six[:, :, n // 2 :]) for six in subs]
        tops = [_twos((six >> 4) & 3) for six in subs]
        subs = [half for pair in zip(lows, tops, strict=True) for half in pair]
    return [np.asarray(sub, dtype=np.uint8).reshape(n_panels, n_units, -1) for sub in subs]


def _lay_spans(layout: Layout, out: Bytes, headers: Bytes, payload: Bytes, first: int, end: int, span: int) -> None:
    """Blocks [first, end) as equal spans to their place in `out`."""
    if first == end:
        return
    n_panels, n_spans = len(out), (end - first) // span
    header_bytes, units = layout.header_bytes(span), slice(first // layout.unit_blocks, -(-end // layout.unit_blocks))
    room = header_bytes + span * layout.stream_bits * LINE
    at = first // layout.span * (layout.header_bytes(layout.span) + layout.span * layout.stream_bits * LINE)
    target = out[:, at : at + n_spans * room].reshape(n_panels, n_spans, room)
    own = headers[:, units].reshape(n_panels, n_spans, -1)
    target[:, :, : own.shape[2]] = own
    target[:, :, own.shape[2] : header_bytes] = 0
    target[:, :, header_bytes:] = payload[:, first:end].reshape(n_panels, n_spans, -1)
