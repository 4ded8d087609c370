"""Calls of operations as plain data: which ones a model makes, and at which shapes.

A case says of each argument what is needed to make another one like it (arguments.py): tensors are shapes, forms are
themselves. So it can be sent to another process, and equal calls of different layers are one case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import msgspec
import torch

from imp_server.backends.cuda.operations import (
    LayerKv,
    Operations,
    PackedMatrix,
    Rows,
    SampleInputs,
    SampleOutputs,
    SlotState,
)

Tensor = torch.Tensor


class OperationCall(msgspec.Struct, frozen=True):
    """One call. `arguments`: by name, as `described` has them."""

    operation: str
    arguments: dict[str, Any]

    def digest_text(self) -> bytes:
        return msgspec.json.encode(self, order="sorted")


class RectangleShape(NamedTuple):
    n_rows: int
    width: int
    columns: int


def described(value: Any) -> Any:
    """JSON of one argument."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        stride = value.stride(0) if value.dim() > 1 else 1
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), stride]}
    if isinstance(value, PackedMatrix):
        return {"matrix": [value.format, value.n_out, value.n_in]}
    if isinstance(value, LayerKv):
        return {"kv": _described_kv(value)}
    if isinstance(value, Rows):
        return {"rows": [value.n_rows, value.width, value.tables[0].shape[1]]}
    if isinstance(value, SlotState):
        return {"slots": list(value.histories.shape)}
    if isinstance(value, SampleInputs):
        shape = [len(value.slots), value.drafts.shape[1] + 1, value.bias_ids.shape[1]]
        return {"sampled": [*shape, value.uses_history, value.n_history_read, value.draws, value.n_logprobs]}
    if isinstance(value, SampleOutputs):
        return {"outputs": [*value.tokens.shape, value.logprobs.shape[2], value.top_ids.shape[2]]}
    if isinstance(value, tuple):
        return {"tuple": [described(each) for each in value]}
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: described(getattr(value, field.name)) for field in fields(value)}
        return {"form": [type(value).__name__, own]}
    raise TypeError(f"an argument of type {type(value).__name__} can't be described")


def _described_kv(kv: LayerKv) -> dict[str, Any]:
    """Its own share of a block alone, so that it is the same for all layers."""
    base = min(part.values for part in kv.parts)
    parts = [
        [part.heads, part.size, part.values - base, -1 if part.scales < 0 else part.scales - base, part.stride]
        for part in kv.parts
    ]
    return {"dtype": kv.dtype, "latent": kv.latent, "parts": parts}


class NotingOperations:
    """All operations, none of which does anything but be noted. `cases`: each once, in order."""

    name = "noting"

    def __init__(self) -> None:
        self._known: dict[bytes, OperationCall] = {}

    @property
    def cases(self) -> list[OperationCall]:
        return list(self._known.values())

    def note(self, operation: str, *args: Any) -> None:
        bound = _signature(operation).bind(None, *args)
        bound.apply_defaults()
        case = OperationCall(operation, _described_all(bound.arguments))
        self._known.setdefault(case.digest_text(), case)

    def __getattr__(self, operation: str) -> Callable[..., None]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return lambda *args: self.note(operation, *args)


def _described_all(arguments: dict[str, Any]) -> dict[str, Any]:
    """A tensor that came before under another name is called by that."""
    found: dict[str, Any] = {}
    places: dict[tuple[int, torch.Size], str] = {}
    for name, value in arguments.items():
        if name == "self":
            continue
        own = described(value)
        if isinstance(value, Tensor):
            first = places.setdefault((value.data_ptr(), value.shape), name)
            own = own if first == name else {"same": first}
        found[name] = own
    return found


def _signature(operation: str) -> inspect.Signature:
    return inspect.signature(getattr(Operations, operation))


DECODE_ROWS = (1, 2, 4, 8, 16, 64)
FEW_COLUMNS, MOST_COLUMNS = 64, 2048
"""Of tables. Beyond 32,768 positions the plain twin would take too much memory."""


def usual_rectangles(n_columns: int) -> list[RectangleShape]:
    """One for each way in which kernels differ by shape: rows of decoding, drafts, chunks; few of them at the longest
    table, `n_columns` wide (up to MOST_COLUMNS)."""
    n_columns = min(n_columns, MOST_COLUMNS)
    few = min(FEW_COLUMNS, n_columns)
    found = [RectangleShape(n, 1, n_columns if n <= 2 else few) for n in DECODE_ROWS]
    found += [RectangleShape(1, 4, n_columns), RectangleShape(4, 8, few)]
    return [*found, RectangleShape(1, 16, few), RectangleShape(4, 64, few), RectangleShape(1, 512, few)]
