"""The high bits of an 8-bit head, from which the native forward finds a greedy row's best id.

The format is that of kernels/cpu/engine/head_plane.h. A panel: per 2 blocks the head's scales as they are (64 bytes),
then 320 bytes a block: with v the stored byte of a weight, 256 bytes of bits 3-6 of v, inputs k and 16 + k in one byte
as in 4-bit layouts, then 64 bytes of which bit q is bit 7 of v in quad q of inputs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu.layouts import LAYOUTS

Bytes = npt.NDArray[np.uint8]

NAME = "head.plane"
"""Of the plane among the packed matrices."""
TYPE = "PLANE5"
SOURCE = "Q8_0"
"""The layout of heads that have a plane: full 8-bit values, one f16 scale per 32."""

_SCALES = 64
_BLOCK = 320
_PANELS_AT_ONCE = 256


def panel_bytes(n_blocks: int) -> int:
    return -(-n_blocks // 2) * _SCALES + n_blocks * _BLOCK


def make_plane(head: Bytes, n_blocks: int, out: Bytes) -> None:
    """Panels of the packed head [n_panels, bytes] -> panels of its plane [n_panels, panel_bytes(n_blocks)]."""
    layout = LAYOUTS[SOURCE]
    assert layout.header_bytes == _SCALES and layout.span == 2
    for first in range(0, len(head), _PANELS_AT_ONCE):
        panels, target = head[first : first + _PANELS_AT_ONCE], out[first : first + _PANELS_AT_ONCE]
        whole = n_blocks // 2
        span = _SCALES + 2 * layout.payload_bytes
        _fill(panels[:, : whole * span].reshape(len(panels), whole, span), target, 2)
        if n_blocks % 2:
            at = whole * (_SCALES + 2 * _BLOCK)
            _fill(panels[:, whole * span :].reshape(len(panels), 1, -1), target[:, at:], 1)


def _fill(spans: Bytes, out: Bytes, n_in_span: int) -> None:
    """Spans of head panels [n, n_spans, bytes] with one header to the front of `out` [n, bytes]."""
    n, n_spans = spans.shape[:2]
    room = _SCALES + n_in_span * _BLOCK
    target = out[:, : n_spans * room].reshape(n, n_spans, room)
    target[:, :, :_SCALES] = spans[:, :, :_SCALES]
    values = spans[:, :, _SCALES:].reshape(n, n_spans, n_in_span, 8, 64)
    middle = (values >> 3) & 15
    blocks = target[:, :, _SCALES:].reshape(n, n_spans, n_in_span, _BLOCK)
    blocks[..., :256] = (middle[:, :, :, :4] | middle[:, :, :, 4:] << 4).reshape(n, n_spans, n_in_span, 256)
    blocks[..., 256:] = np.packbits(values >> 7, axis=3, bitorder="little").reshape(n, n_spans, n_in_span, 64)
