"""The weights of a Hugging Face folder under their plain names, whatever they are packed in.

`model.layers.0.self_attn.q_proj.weight` may be stored as `.weight` with scales, as `.weight_packed`, as
`.qweight`; experts in MXFP4 as `_blocks` and `_scales`. `Checkpoint` shows one name and one float32 array.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.weights import float_blocks, packed_ints
from imp_server.weights.blocks import Bytes, Floats
from imp_server.weights.elements import FLOAT8, floats, integers
from imp_server.weights.hf_folder import HfFolder

# Parts of a packed weight and what only running it would need; none is a weight of its own.
_COMPANIONS = (
    ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_zero_point", ".weight_shape", ".weight_g_idx",
    ".weight_global_scale", ".input_scale", ".input_global_scale", ".qzeros", ".scales", ".g_idx", ".k_scale",
    ".v_scale", ".output_scale",
)  # fmt: skip


Content: TypeAlias = Floats | packed_ints.Grouped | float_blocks.Microscaled
"""Plain numbers, or integers or codes beside their scales."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One logical tensor: how it is stored, its plain shape, and how to make it."""

    scheme: str
    shape: tuple[int, ...]
    make: Callable[[], Content]


class Checkpoint:
    """Logical tensors of a folder. Immutable; arrays are made when asked for."""

    def __init__(self, folder: HfFolder) -> None:
        """Raises InvalidModel, UnsupportedModel (naming the scheme or the tensor)."""
        self.folder = folder
        quantisation = folder.config.get("quantization_config") or folder.optional_json("hf_quant_config.json").get(
            "quantization", {}
        )
        self.quantisation: Mapping[str, Any] = quantisation if isinstance(quantisation, dict) else {}
        self._packed: dict[str, Packed] = {}
        for name in folder.tensors:
            found = self._read_entry(name)
            if found is not None:
                self._packed[found[0]] = found[1]

    def __contains__(self, name: str) -> bool:
        return name in self._packed

    def names(self) -> Collection[str]:
        return self._packed.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def scheme(self, name: str) -> str:
        """The stored type or the packing, for people."""
        return self._entry(name).scheme

    def data(self, name: str) -> Bytes:
        """The bytes of a tensor that is stored as plain numbers."""
        return self.folder.data(name)

    def array(self, name: str) -> Floats:
        """float32 in its plain shape ([out, in]; experts [count, out, in]). Raises InvalidModel naming the tensor."""
        content = self.content(name)
        return content if isinstance(content, np.ndarray) else content.floats()

    def content(self, name: str) -> Content:
        """What is stored, not multiplied out where the scheme allows it. Raises InvalidModel naming the tensor."""
        entry = self._entry(name)
        try:
            content = entry.make()
            shape = content.shape
        except (ValueError, IndexError) as error:
            raise InvalidModel(f"the parts of tensor '{name}' ({entry.scheme}) don't fit together: {error}") from None
        if shape != entry.shape:
            raise InvalidModel(f"tensor '{name}' ({entry.scheme}) gives {shape} instead of {entry.shape}")
        return content

    def _entry(self, name: str) -> Packed:
        if name not in self._packed:
            raise InvalidModel(f"{self.folder.path.name}: there is no tensor '{name}'")
        return self._packed[name]

    def _read_entry(self, name: str) -> tuple[str, Packed] | None:
        stored = self.folder.tensors[name]
        if name.endswith(".weight_packed"):
            return self._compressed(name.removesuffix(".weight_packed"))
        if name.endswith(".qweight"):
            return self._gptq_or_awq(name.removesuffix(".qweight"))
        if name.endswith("_blocks") and name.removesuffix("_blocks") + "_scales" in self.folder.tensors:
            return self._mxfp4(name.removesuffix("_blocks"))
        if name.endswith(_COMPANIONS) or (
            name.endswith("_scales") and name.removesuffix("_scales") + "_blocks" in self.folder.tensors
        ):
            return None
        if stored.dtype in FLOAT8 or (stored.dtype in ("I8", "U8") and name.endswith(".weight")):
            return self._scaled(name)
        return name, Packed(stored.dtype, stored.shape, lambda: self._floats(name))

    def _scaled(self, name: str) -> tuple[str, Packed]:
        stored = self.folder.tensors[name]
        scale, second = f"{name}_scale", f"{name}_scale_2"
        if stored.dtype == "U8":
            rows, half = self._two_dims(name)

            def make_nvfp4() -> Floats:
                scales = self._floats(scale) * self._floats(second).reshape(())
                return float_blocks.grouped(self._ints(name), scales)

            self._require(name, scale, second)
            return name, Packed("NVFP4", (rows, 2 * half), make_nvfp4)
        if f"{name}_scale_inv" in self.folder.tensors:
            scale = f"{name}_scale_inv"
        elif scale not in self.folder.tensors:
            if stored.dtype == "I8":
                raise InvalidModel(f"tensor '{name}' is int8 without scales")
            return name, Packed(stored.dtype, stored.shape, lambda: self._floats(name))
        zero = f"{name}_zero_point"

        def make() -> Content:
            zeros = self._floats(zero).reshape(-1, 1) if zero in self.folder.tensors else None
            if stored.dtype == "I8" and (zeros is None or not zeros.any()):
                rows = packed_ints.int8_rows(self._ints(name), self._floats(scale))
                if rows is not None:
                    return rows
            weight = self._floats(name) if zeros is None else self._floats(name) - zeros
            return float_blocks.scaled(weight, self._floats(scale), name, self._block_size())

        self._two_dims(name)
        return name, Packed(f"{stored.dtype} scaled", stored.shape, make)

    def _block_size(self) -> tuple[int, int]:
        """Rows and columns that share a scale where scales form a grid: 128 x 128 unless the config says otherwise."""
        size = self.quantisation.get("weight_block_size")
        for group in (self.quantisation.get("config_groups") or {}).values():
            size = ((group.get("weights") or {}) if isinstance(group, dict) else {}).get("block_structure") or size
        if isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
            return size[0], size[1]
        return 128, 128

    def _compressed(self, base: str) -> tuple[str, Packed]:
        packed, scale = f"{base}.weight_packed", f"{base}.weight_scale"
        self._require(packed, scale)
        rows, words = self._two_dims(packed)
        name = f"{base}.weight"
        if self.folder.tensors[packed].dtype == "U8":
            return name, self._compressed_floats(base, rows, 2 * words)
        bits = self._compressed_bits(base, words)
        columns = words * 32 // bits
        if f"{base}.weight_shape" in self.folder.tensors:
            columns = int(self._ints(f"{base}.weight_shape")[-1])
        zeros, index = f"{base}.weight_zero_point", f"{base}.weight_g_idx"

        def make() -> packed_ints.Grouped:
            zero_points = None
            if zeros in self.folder.tensors:
                zero_points = self._ints(zeros)
                if self.folder.tensors[zeros].dtype == "I32":
                    zero_points = packed_ints.unpack(zero_points, bits, 0)[:rows] - (1 << (bits - 1))
            group_of = self._ints(index) if index in self.folder.tensors else None
            if group_of is not None and (group_of < 0).any():
                group_of = None  # the format's way to say that groups are in order
            scales = self._floats(scale)
            if scales.ndim != 2 or len(scales) != rows:
                raise ValueError(f"scales {scales.shape} for {rows} rows")
            return packed_ints.compressed(self._ints(packed), scales, zero_points, group_of, bits, columns)

        return name, Packed(f"int{bits} packed", (rows, columns), make)

    def _compressed_floats(self, base: str, rows: int, columns: int) -> Packed:
        packed, scale, whole = f"{base}.weight_packed", f"{base}.weight_scale", f"{base}.weight_global_scale"
        if whole not in self.folder.tensors:
            return Packed(
                "MXFP4",
                (rows, columns),
                lambda: float_blocks.Microscaled(self._ints(packed).reshape(rows, -1, 16), self._ints(scale)),
            )
        return Packed(
            "NVFP4",
            (rows, columns),
            lambda: float_blocks.grouped(self._ints(packed), self._floats(scale) / self._floats(whole).reshape(())),
        )

    def _compressed_bits(self, base: str, words: int) -> int:
        shape = f"{base}.weight_shape"
        if shape in self.folder.tensors:
            columns = int(self._ints(shape)[-1])
            for bits in (4, 8, 2):
                if -(-columns * bits // 32) == words:
                    return bits
            raise InvalidModel(f"'{shape}' says {columns} columns, which don't fill {words} words")
        return 4

    def _gptq_or_awq(self, base: str) -> tuple[str, Packed]:
        method = str(self.quantisation.get("quant_method", "gptq")).lower()
        if method == "awq":
            return self._awq(base)
        if method not in ("gptq", "gptqmodel", "auto-round"):
            raise UnsupportedModel(f"the quantisation '{method}' isn't supported")
        bits = self.quantisation.get("bits", 4)
        if bits not in (2, 4, 8):
            raise UnsupportedModel(f"GPTQ with {bits} bits isn't supported (2, 4 and 8 are)")
        weight, zeros, scales, index = (f"{base}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
        self._require(weight, zeros, scales)
        words, rows = self._two_dims(weight)
        columns = words * 32 // bits
        offset = 0 if self.quantisation.get("checkpoint_format") == "gptq_v2" else 1

        def make() -> packed_ints.Grouped:
            scale = self._floats(scales)
            if index in self.folder.tensors:
                group_of = self._ints(index)
                if len(group_of) and not 0 <= int(group_of.min()) <= int(group_of.max()) < len(scale):
                    raise ValueError("g_idx names a group that isn't there")
            else:
                group_of = np.arange(columns) // -(-columns // len(scale))
            return packed_ints.gptq(self._ints(weight), self._ints(zeros), scale, group_of, bits, zero_offset=offset)

        return f"{base}.weight", Packed(f"GPTQ int{bits}", (rows, columns), make)

    def _awq(self, base: str) -> tuple[str, Packed]:
        bits = self.quantisation.get("bits", self.quantisation.get("w_bit", 4))
        version = str(self.quantisation.get("version", "gemm")).lower()
        if bits != 4 or version != "gemm":
            raise UnsupportedModel(f"AWQ with {bits} bits, version {version}, isn't supported (4 bits, gemm is)")
        weight, zeros, scales = (f"{base}.{part}" for part in ("qweight", "qzeros", "scales"))
        self._require(weight, zeros, scales)
        columns, words = self._two_dims(weight)

        def make() -> packed_ints.Grouped:
            scale = self._floats(scales)
            return packed_ints.awq(self._ints(weight), self._ints(zeros), scale, -(-columns // len(scale)))

        return f"{base}.weight", Packed("AWQ int4", (8 * words, columns), make)

    def _mxfp4(self, base: str) -> tuple[str, Packed]:
        blocks, scales = f"{base}_blocks", f"{base}_scales"
        shape = self.folder.tensors[blocks].shape
        if len(shape) < 3 or shape[-1] != 16:
            raise InvalidModel(f"tensor '{blocks}' has the shape {shape}, not [..., groups, 16]")
        plain = (*shape[:-2], 32 * shape[-2])
        return base, Packed("MXFP4", plain, lambda: float_blocks.Microscaled(self._ints(blocks), self._ints(scales)))

    def _floats(self, name: str) -> Floats:
        stored = self.folder.tensors[name]
        return floats(stored.dtype, self.folder.data(name)).reshape(stored.shape)

    def _ints(self, name: str) -> npt.NDArray[Any]:
        stored = self.folder.tensors[name]
        return integers("U8" if stored.dtype == "F8_E8M0" else stored.dtype, self.folder.data(name)).reshape(
            stored.shape
        )

    def _two_dims(self, name: str) -> tuple[int, int]:
        shape = self.folder.tensors[name].shape
        if len(shape) != 2:
            raise InvalidModel(f"tensor '{name}' has the shape {shape}, not two dimensions")
        return shape[0], shape[1]

    def _require(self, *names: str) -> None:
        missing = [n for n in names if n not in self.folder.tensors]
        if missing:
            raise InvalidModel(f"tensor '{missing[0]}' is missing; the packed weight can't be read without it")


_TEXT_PREFIXES = (("language_model.model.", "model."), ("model.language_model.", "model."), ("language_model.", ""))
"""What stands before the names of a text part's tensors -> before those of a model of text alone."""
_OTHER_PARTS = (
    "vision_tower.", "vision_model.", "multi_modal_projector.", "embed_vision.", "audio_tower.", "embed_audio.",
    "vision_embedder.", "patch_merger.",
)  # fmt: skip


class TextTensors(Checkpoint):
    """The tensors of a model's text part, named as in a model of text alone, without those of images and sounds."""

    def __init__(self, whole: Checkpoint) -> None:
        self.folder, self.quantisation = whole.folder, whole.quantisation
        self._stored = {_as_text_alone(name): name for name in whole.names() if not _is_of_another_part(name)}
        self._packed = {ours: whole._packed[theirs] for ours, theirs in self._stored.items()}

    def data(self, name: str) -> Bytes:
        return self.folder.data(self._stored[name])


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """What there is of text: the whole, where the config has no parts."""
    return TextTensors(checkpoint) if isinstance(checkpoint.folder.config.get("text_config"), dict) else checkpoint


def _as_text_alone(name: str) -> str:
    for theirs, ours in _TEXT_PREFIXES:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _is_of_another_part(name: str) -> bool:
    return name.removeprefix("model.").startswith(_OTHER_PARTS)
