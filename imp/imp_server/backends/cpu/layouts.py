"""The packed layouts, in the words of kernels/cpu/engine/formats.h, and the assembly of panels from their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]
SignedBytes = npt.NDArray[np.int8]

LAYOUT_VERSION = 2
PANEL_ROWS = 16
BLOCK = 32

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""E2M1 doubled; the block scale is halved to match."""


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
    scales: str = "f16"
    """f16 | bf16 | two_level (f16 d, dmin per 256; int8 per group)."""

    @property
    def n_groups(self) -> int:
        return BLOCK // self.group

    @property
    def two_level(self) -> bool:
        return self.scales == "two_level"

    @property
    def span(self) -> int:
        """Blocks under one header."""
        return 8 if self.two_level else 2

    @property
    def payload_bytes(self) -> int:
        return self.bits * 64

    @property
    def sub_bytes(self) -> int:
        """Header bytes of one block."""
        if self.two_level:
            return self.n_groups * (32 if self.minimum else 16)
        return 64 if self.minimum else 32

    @property
    def super_bytes(self) -> int:
        return (64 if self.minimum else 32) if self.two_level else 0

    @property
    def header_bytes(self) -> int:
        return -(-(self.super_bytes + self.span * self.sub_bytes) // 64) * 64

    def panel_bytes(self, n_blocks: int) -> int:
        return -(-n_blocks // self.span) * self.header_bytes + n_blocks * self.payload_bytes


LAYOUTS: dict[str, Layout] = {
    "Q4_0": Layout(0, 4, zero=8),
    "Q4_1": Layout(1, 4, minimum=True),
    "Q4_K": Layout(2, 4, minimum=True, scales="two_level"),
    "Q2_K": Layout(3, 4, group=16, minimum=True, scales="two_level"),
    "Q3_K": Layout(4, 4, group=16, zero=4, scales="two_level"),
    "IQ4_NL": Layout(5, 4, zero=128, table=IQ4_VALUES),
    "IQ4_XS": Layout(6, 4, zero=128, table=IQ4_VALUES, scales="two_level"),
    "MXFP4": Layout(7, 4, zero=128, table=MXFP4_VALUES, scales="bf16"),
    "Q8_0": Layout(8, 8, zero=128),
    "Q5_0": Layout(9, 8, zero=16),
    "Q5_1": Layout(10, 8, minimum=True),
    "Q5_K": Layout(11, 8, minimum=True, scales="two_level"),
    "Q6_K": Layout(12, 8, group=16, zero=32, scales="two_level"),
}
FLOAT_LAYOUTS = {"F16": 13, "BF16": 14, "F32": 15}
"""Float panels: [input][16 outputs], inputs padded to whole blocks."""


@dataclass(slots=True)
class Parts:
    """A matrix taken apart, rows first. Absent parts are None.

    `payload` [n_out, n_blocks, 16 | 32]: 4-bit codes with inputs k and 16 + k in one byte, or one byte a value.
    Plain scales `scale`, `minimum` [n_out, n_blocks] as the bits of f16 or bf16; two-level `scale`, `minimum`
    [n_out, n_blocks / 8] as f16 bits and `sub_scale`, `sub_minimum` int8 [n_out, n_blocks, groups].
    """

    payload: Bytes
    scale: Halves
    minimum: Halves | None = None
    sub_scale: SignedBytes | None = None
    sub_minimum: SignedBytes | None = None


def assemble(layout: Layout, parts: Parts, out: Bytes) -> None:
    """Write panels to `out` [n_panels, panel_bytes]. Rows past n_out get scale 0."""
    n_panels = len(out)
    n_blocks = parts.payload.shape[1]
    payload = _interleave(parts.payload, n_panels, layout)
    span_bytes = layout.header_bytes + layout.span * layout.payload_bytes
    n_whole = n_blocks // layout.span
    whole = out[:, : n_whole * span_bytes].reshape(n_panels, n_whole, span_bytes)
    cut = n_whole * layout.span
    _fill(layout, whole, payload[:, :cut], parts, slice(0, cut), n_whole)
    if cut < n_blocks:
        rest = out[:, n_whole * span_bytes :].reshape(n_panels, 1, -1)
        _fill(layout, rest, payload[:, cut:], parts, slice(cut, n_blocks), 1)


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


def _interleave(payload: Bytes, n_panels: int, layout: Layout) -> Bytes:
    words = np.ascontiguousarray(payload).view(np.uint32)
    lanes = _lanes(words, n_panels).transpose(0, 2, 3, 1)
    n_blocks = payload.shape[1]
    return np.ascontiguousarray(lanes).view(np.uint8).reshape(n_panels, n_blocks, layout.payload_bytes)


def _fill(layout: Layout, out: Bytes, payload: Bytes, parts: Parts, blocks: slice, n_spans: int) -> None:
    """One run of equal spans: out [n_panels, n_spans, bytes of a span]."""
    n_panels = len(out)
    count = payload.shape[1] // n_spans if n_spans else 0
    if not count:
        return
    out[:, :, layout.header_bytes :] = payload.reshape(n_panels, n_spans, -1)
    header = out[:, :, : layout.header_bytes]
    header[:] = 0

    def lanes(values: npt.NDArray[Any]) -> Bytes:
        """[n_out, blocks, ...] -> bytes [n_panels, n_spans, per span ...], lanes innermost."""
        moved = np.moveaxis(_lanes(values, n_panels), 1, -1)
        flat = np.ascontiguousarray(moved).view(np.uint8)
        return flat.reshape(n_panels, n_spans, -1)

    if not layout.two_level:
        pieces = [parts.scale[:, blocks]] + ([parts.minimum[:, blocks]] if parts.minimum is not None else [])
        filled = lanes(np.stack(pieces, axis=2))
        header[:, :, : filled.shape[2]] = filled
        return
    assert parts.sub_scale is not None
    spans = slice(blocks.start // layout.span, -(-blocks.stop // layout.span))
    supers = [parts.scale[:, spans]] + ([parts.minimum[:, spans]] if parts.minimum is not None else [])
    header[:, :, : layout.super_bytes] = lanes(np.stack(supers, axis=2))
    subs = [parts.sub_scale[:, blocks]] + ([parts.sub_minimum[:, blocks]] if parts.sub_minimum is not None else [])
    filled = lanes(np.concatenate(subs, axis=2))
    header[:, :, layout.super_bytes : layout.super_bytes + filled.shape[2]] = filled
