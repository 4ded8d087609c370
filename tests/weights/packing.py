"""Writes folders of safetensors, and packs integers into words element by element."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file


def folder(path: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return path


def pack(values: npt.NDArray[Any], bits: int, axis: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Element by element: value j of a word goes to bits [bits * j, bits * (j + 1)), or to nibble order.index(j)."""
    values = np.moveaxis(values, axis, -1)
    per_word = 32 // bits
    n_words = -(-values.shape[-1] // per_word)
    words = np.zeros((*values.shape[:-1], n_words), dtype=np.uint64)
    for index in np.ndindex(values.shape):
        place = index[-1] % per_word
        slot = order.index(place) if order else place
        words[(*index[:-1], index[-1] // per_word)] |= np.uint64(int(values[index]) << (bits * slot))
    return torch.from_numpy(np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis).copy())
