"""An opened model: its description and its tensors under canonical names, whatever the file format.

Canonical names, [out, in] like the checkpoints: `embedding`, `position_embedding`, `embedding_norm`, `final_norm`,
`head`; per layer `layers.N.` + `attn_norm`, `q`, `k`, `v`, `o`, `q_norm`, `k_norm`, `sinks`, `post_attn_norm`,
`ffn_norm`, `gate`, `up`, `down`, `post_ffn_norm`, `router`, `experts_gate`, `experts_up`, `experts_down` ([count, out,
in]), `shared_gate`, `shared_up`, `shared_down`, `shared_router`; of latent attention `q_a`, `q_a_norm`, `q_b`, `kv_a`,
`kv_a_norm`, `k_b` ([heads, rank, in]), `v_b` ([heads, out, rank]). What ids say
to layers: `layer_embedding`, `layer_projection`, `layer_projection_norm`, per layer `embedding_gate`,
`embedding_up`, `post_embedding_norm`. Several streams: `stream_projection`, `stream_merge` ([streams - 1, out, in]),
per layer `stream_router`, `stream_router_norm`, `stream_predict` ([streams * streams, streams]), `stream_correct`,
`stream_scale`; a way around the mixer: `laurel_down`, `laurel_up`, `laurel_norm`. A bias adds `.bias` to the name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel
from imp_server.models.architecture import Architecture
from imp_server.models.tensor_names import Places, TensorPlace
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.dequantise import dequantise
from imp_server.weights.ggml_types import BY_NAME, GgmlType
from imp_server.weights.gguf import GgufFile
from imp_server.weights.header import ModelHeader
from imp_server.weights.repack import repack


class RawTensor(NamedTuple):
    """`data`: the bytes as a GGUF file has them; a view of the map where the file has them so."""

    type: GgmlType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def cut(self, place: TensorPlace) -> RawTensor:
        """What is at a place of this tensor. Rows lie one after the other, and blocks never cross them."""
        if place.heads:
            by_head = RawTensor(self.type, (place.heads, self.shape[0] // place.heads, *self.shape[1:]), self.data)
            part = by_head.cut(replace(place, transposed=False, heads=0))
            return part._turned() if place.transposed else part
        if place.transposed:
            return self._turned().cut(replace(place, transposed=False))
        if place.rows is None:
            return self
        axis = -1 if place.is_bias else -2
        shape = list(self.shape)
        shape[axis] = len(range(*place.rows))
        n_rows = self.shape[axis]
        n_before = math.prod(self.shape[:axis])
        rows = self.data.reshape(n_before, n_rows, -1)[:, slice(*place.rows)]
        return RawTensor(self.type, tuple(shape), np.ascontiguousarray(rows).reshape(-1))

    def _turned(self) -> RawTensor:
        """With the last two axes exchanged; what is quantised becomes float32, since blocks lie along rows."""
        if self.type.block != 1:
            floats = dequantise(self.type, self.data)
            return RawTensor(BY_NAME["F32"], self.shape, floats.view(np.uint8).reshape(-1))._turned()
        size = len(self.data) // math.prod(self.shape)
        numbers = self.data.view(f"V{size}").reshape(self.shape)
        turned = np.ascontiguousarray(np.swapaxes(numbers, -1, -2))
        return RawTensor(self.type, turned.shape, turned.reshape(-1).view(np.uint8))


def stacked(parts: Sequence[RawTensor]) -> RawTensor:
    """Tensors of one type and shape along a new first axis."""
    first = parts[0]
    return RawTensor(first.type, (len(parts), *first.shape), np.concatenate([part.data for part in parts]))


class ModelSource(Protocol):
    """What a backend loads from. Tensors are read when asked for."""

    header: ModelHeader
    architecture: Architecture
    places: Places
    """Where the tensors are in the files, by their canonical names."""

    def __contains__(self, name: str) -> bool: ...

    def names(self) -> Collection[str]:
        """Canonical names of all tensors."""
        ...

    def raw(self, name: str) -> RawTensor:
        """Raises InvalidModel for a tensor that isn't there."""
        ...

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """Dequantised, in its shape."""
        ...


class GgufSource:
    """A model in GGUF form; holds the file's map open."""

    def __init__(self, file: GgufFile, header: ModelHeader, architecture: Architecture, places: Places) -> None:
        """`places`: of the tensors that are there, by their canonical names."""
        self.header = header
        self.architecture = architecture
        self._file = file
        self.places = places

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def names(self) -> Collection[str]:
        return self.places.keys()

    def raw(self, name: str) -> RawTensor:
        if name not in self.places:
            raise InvalidModel(f"{self._file.path.name}: the tensor for '{name}' is missing")
        place = self.places[name]
        parts = [self._file.tensors[part] for part in place.names]
        raw = [RawTensor(info.type, info.shape, self._file.data(info.name)) for info in parts]
        return (raw[0] if isinstance(place.name, str) else stacked(raw)).cut(place)

    def array(self, name: str) -> npt.NDArray[np.float32]:
        raw = self.raw(name)
        return dequantise(raw.type, raw.data).reshape(raw.shape)


class CheckpointSource:
    """A model in a Hugging Face folder; holds its maps open."""

    def __init__(self, checkpoint: Checkpoint, header: ModelHeader, architecture: Architecture, places: Places) -> None:
        """`places`: of the tensors that are there, by their canonical names."""
        self.header = header
        self.architecture = architecture
        self._checkpoint = checkpoint
        self.places = places

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def names(self) -> Collection[str]:
        return self.places.keys()

    def raw(self, name: str) -> RawTensor:
        """Float tensors as they are stored; packed ones in a GGUF type that says exactly the same, else as F32."""
        place = self._stored(name)
        if isinstance(place.name, str):
            return self._whole(place.name).cut(place)
        parts = [self._whole(name) for name in place.name]
        if len({(part.type.name, part.shape) for part in parts}) > 1:
            raise InvalidModel(f"{self._checkpoint.folder.path.name}: the experts of '{name}' differ in shape or type")
        return stacked(parts).cut(place)

    def _whole(self, theirs: str) -> RawTensor:
        kind = BY_NAME.get(self._checkpoint.scheme(theirs))
        if kind is not None and kind.name in ("F32", "F16", "BF16"):
            return RawTensor(kind, self._checkpoint.shape(theirs), self._checkpoint.data(theirs))
        content = self._checkpoint.content(theirs)
        if not isinstance(content, np.ndarray):
            if (packed := repack(content)) is not None:
                return RawTensor(BY_NAME[packed.type_name], content.shape, packed.data)
            content = content.floats()
        return RawTensor(BY_NAME["F32"], content.shape, np.ascontiguousarray(content).view(np.uint8).reshape(-1))

    def array(self, name: str) -> npt.NDArray[np.float32]:
        place = self._stored(name)
        arrays = [self._checkpoint.array(part) for part in place.names]
        whole = arrays[0] if isinstance(place.name, str) else np.stack(arrays)
        if place.heads:
            part = whole.reshape(place.heads, -1, *whole.shape[1:])[:, slice(*(place.rows or ()))]
            return np.ascontiguousarray(np.swapaxes(part, -1, -2)) if place.transposed else part
        if place.transposed:
            whole = np.swapaxes(whole, -1, -2)
        if place.rows is None:
            return whole
        return whole[..., slice(*place.rows)] if place.is_bias else whole[..., slice(*place.rows), :]

    def _stored(self, name: str) -> TensorPlace:
        if name not in self.places:
            raise InvalidModel(f"{self._checkpoint.folder.path.name}: the tensor for '{name}' is missing")
        return self.places[name]
