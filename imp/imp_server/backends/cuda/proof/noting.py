"""What a model asks of the operations: its forward, walked at the shapes that matter with operations that note."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from imp_server.backends.cuda.device import Device
from imp_server.backends.cuda.forward import DeviceForward
from imp_server.backends.cuda.operations import Operations, Rows, SlotState
from imp_server.backends.cuda.proof.cases import NotingOperations, OperationCall, RectangleShape
from imp_server.backends.cuda.sampling import SamplerFrame, SamplerShape, mask_words

Tensor = torch.Tensor

OUTPUT_ROWS = (1, 2, 4, 8, 16, 64)
"""Rows that a head makes logits of."""
HISTORY = 256
_SAMPLERS = tuple(
    SamplerShape(n, width, n_biases, -1, history, draws, is_best)
    for n, width in ((1, 1), (4, 1), (16, 1), (2, 4))
    for n_biases, history, draws, is_best in (
        (0, 0, False, True),
        (0, 0, True, False),
        (4, HISTORY, True, False),
        (4, HISTORY, False, False),
    )
)


def noted_cases(
    forward_of: Callable[[Operations], DeviceForward],
    rectangles: Sequence[RectangleShape],
    block_bytes: Sequence[int],
    device: Device,
) -> list[OperationCall]:
    """`forward_of`: makes the model's forward of operations. Nothing is computed, and no weight is read."""
    noting = NotingOperations()
    forward = forward_of(noting)
    vocab, width, on = forward.architecture.vocab_size, forward.architecture.width, device.torch_device
    slots = SlotState(_ints(on, 2), _ints(on, 2, HISTORY))
    for shape in rectangles:
        rows = _rows(shape, len(block_bytes), on)
        hidden = torch.empty((rows.n_tokens, width), device=on)
        forward.hidden(_ints(on, rows.n_tokens), rows, slots, None, hidden)
    for n in OUTPUT_ROWS:
        hidden, logits = torch.empty((n, width), device=on), torch.empty((n, vocab), device=on)
        forward.logits(hidden, logits)
        forward.best(hidden, _ints(on, n))
    _note_samplers(noting, vocab, slots, device)
    for n_bytes in dict.fromkeys(block_bytes):
        noting.note("copy_blocks", torch.empty((9, n_bytes), dtype=torch.uint8, device=on), _ints(on, 4, 2))
    return noting.cases


def _note_samplers(noting: NotingOperations, vocab: int, slots: SlotState, device: Device) -> None:
    most = max(shape.n_outputs for shape in _SAMPLERS)
    masks = _ints(device.torch_device, most, mask_words(vocab))
    for shape in _SAMPLERS:
        frame = SamplerFrame(shape, masks, device)
        if shape.is_best:
            noting.note("take_best", _ints(device.torch_device, shape.n_outputs), frame.inputs, slots, frame.outputs)
        else:
            logits = torch.empty((shape.n_outputs, vocab), device=device.torch_device)
            noting.note("sample", logits, frame.inputs, slots, frame.outputs)


def _rows(shape: RectangleShape, n_groups: int, device: torch.device) -> Rows:
    ints = [_ints(device, shape.n_rows) for _ in range(3)]
    tables = tuple(_ints(device, shape.n_rows, shape.columns) for _ in range(n_groups))
    return Rows(shape.n_rows, shape.width, ints[0], ints[1], ints[2], tables)


def _ints(device: torch.device, *shape: int) -> Tensor:
    on: dict[str, Any] = {"dtype": torch.int32, "device": device}
    return torch.zeros(shape, **on)
