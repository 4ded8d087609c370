"""A LoRA adapter, matched with its model: which of the model's matrices it adds to, by their canonical names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.shapes import expected_shapes
from imp_server.models.source import ModelSource
from imp_server.models.tensor_names import TensorPlace
from imp_server.weights.lora import Half, LowRank, read_lora

ADAPTED = ("q", "k", "v", "o", "q_a", "q_b", "kv_a", "gate", "up", "down", "shared_gate", "shared_up", "shared_down")
"""Names of a layer's matrices that adapters may add to: the projections that every row goes through."""

_OF_LAYER = re.compile(r"(?:model\.|language_model\.|text_model\.)*layers\.(?P<rest>.+)")
"""The layers of a model's text part; those of its other parts are no places for its adapters."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Addition:
    """y += scale * b (a x). a [rank, in], b [out, rank]."""

    a: Floats
    b: Floats
    scale: float


Adapter = Mapping[str, Addition]
"""Canonical name of a matrix (models/source.py) -> what is added to what it makes."""


def adapted_names(names: Mapping[str, object]) -> list[str]:
    """Those of a model's matrices that adapters may add to, in order."""
    return [name for name in names if name.rpartition(".")[2] in ADAPTED and name.startswith("layers.")]


def open_adapter(path: str, source: ModelSource) -> Adapter:
    """Read and matched with the model. Raises ModelFileMissing, InvalidModel, UnsupportedModel.

    All that doesn't fit is found before any number is read.
    """
    file = read_lora(Path(path))
    where, header = file.path.name, source.header
    if file.format != header.format:
        ours, theirs = ("a GGUF file", "a folder") if header.format == "gguf" else ("a folder", "a GGUF file")
        raise UnsupportedModel(
            f"{where}: the model is {ours}, the adapter {theirs}; convert one of them (llama.cpp's "
            "convert_lora_to_gguf.py does adapters)"
        )
    if file.architecture and file.architecture != header.architecture:
        raise UnsupportedModel(
            f"{where}: this adapter is for the architecture {file.architecture!r}, the model is {header.architecture!r}"
        )
    if not file.parts:
        raise InvalidModel(f"{where}: the adapter has no tensors")
    matrices = _Matrices(source)
    matched: dict[str, tuple[LowRank, TensorPlace]] = {}
    for part in file.parts:
        for name, place in matrices.of(part, where):
            if name in matched:
                other = matched[name][0].a.name
                raise InvalidModel(f"{where}: '{other}' and '{part.a.name}' are for the same matrix of the model")
            matched[name] = (part, place)
    return {name: _read(part, place, where) for name, (part, place) in matched.items()}


class _Matrices:
    """A model's matrices by their names in its files."""

    def __init__(self, source: ModelSource) -> None:
        self._shapes = expected_shapes(source.architecture)
        self._served = frozenset(adapted_names(self._shapes))
        self._places: dict[str, list[tuple[str, TensorPlace]]] = {}
        for name, place in source.places.items():
            for theirs in place.names:
                # PEFT's names are those of the trained class, whose outer parts may differ from the files'.
                for key in {theirs, _from_layer(theirs)} - {""}:
                    self._places.setdefault(key, []).append((name, place))

    def of(self, part: LowRank, where: str) -> list[tuple[str, TensorPlace]]:
        """Those that are made of the file's one, which may hold several by rows."""
        found = self._places.get(part.matrix) or self._places.get(_from_layer(part.matrix))
        if not found:
            raise InvalidModel(f"{where}: '{part.a.name}': the model has no matrix '{part.matrix}'")
        for name, place in found:
            if name not in self._served or place.transposed or place.heads or not isinstance(place.name, str):
                raise UnsupportedModel(
                    f"{where}: '{part.a.name}': adapters of '{part.matrix}' aren't supported; those of the projections "
                    "of attention and of dense feed-forwards are"
                )
        n_in, n_out = self._shapes[found[0][0]][-1], sum(self._shapes[name][-2] for name, _ in found)
        for half, want in ((part.a, (part.rank, n_in)), (part.b, (n_out, part.rank))):
            if half.shape != want:
                raise InvalidModel(f"{where}: '{half.name}' is {half.shape}, for this model it has to be {want}")
        return found


def _from_layer(name: str) -> str:
    """`N.self_attn.q_proj.weight` of a name of a tensor of the text part's layers; else empty."""
    found = _OF_LAYER.fullmatch(name)
    return found["rest"] if found else ""


def _read(part: LowRank, place: TensorPlace, where: str) -> Addition:
    a, b = _finite(part.a, where), _finite(part.b, where)
    if place.rows is not None:
        b = np.ascontiguousarray(b[slice(*place.rows)])
    return Addition(a, b, part.factor)


def _finite(half: Half, where: str) -> Floats:
    values = half.read()
    if not np.isfinite(values).all():
        raise InvalidModel(f"{where}: '{half.name}' has numbers that aren't finite")
    return values
