"""Reads LoRA adapters: GGUF files as llama.cpp's converter writes them, and the folders that PEFT saves.

An adapter adds factor * b (a x) to what a matrix of its model makes of x. Files are mapped; shapes are known, and
checked against each other, before any number is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel
from imp_server.weights.dequantise import dequantise
from imp_server.weights.elements import floats
from imp_server.weights.gguf import GgufFile, is_gguf
from imp_server.weights.hf_folder import read_json
from imp_server.weights.lora_config import MOST_ALPHA, LoraConfig
from imp_server.weights.safetensors import SafetensorsFile

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_RANK = 4096
_GGUF_TYPES = ("F32", "F16", "BF16", "Q8_0")
_STORED_TYPES = ("F32", "F16", "BF16")
_GGUF_NAME = re.compile(r"^(?P<matrix>.+)\.lora_(?P<half>[ab])$")
_PEFT_NAME = re.compile(r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight$")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Half:
    """One of an adapter's two matrices; `read` makes float32 of it, in its shape."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], Floats]


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to the matrix of that name in the model's own files: factor * b (a x)."""

    matrix: str
    a: Half
    """[rank, in]"""
    b: Half
    """[out, rank]"""
    factor: float

    @property
    def rank(self) -> int:
        return self.a.shape[-2]


@dataclass(frozen=True, slots=True)
class LoraFile:
    """`architecture`: of the model that it was made for, as GGUF files say it; empty: the file doesn't."""

    path: Path
    format: Literal["gguf", "safetensors"]
    architecture: str
    parts: list[LowRank]


def read_lora(path: Path) -> LoraFile:
    """A GGUF file or a folder of PEFT. Raises ModelFileMissing, InvalidModel, UnsupportedModel."""
    if not path.exists():
        raise ModelFileMissing(f"there is no adapter at {path}")
    if path.is_file() and is_gguf(path):
        return _read_gguf(path)
    if (folder := _folder(path)) is not None and (folder / CONFIG).is_file():
        return _read_peft(folder)
    raise UnsupportedModel(f"{path.name}: no adapter: neither a .gguf file nor a folder with {CONFIG}")


def lora_files(path: Path) -> list[Path]:
    """All files that `read_lora` takes an adapter's numbers from."""
    folder = _folder(path)
    return [path] if folder is None else [folder / CONFIG, folder / WEIGHTS]


def _folder(path: Path) -> Path | None:
    """Of an adapter of PEFT, which may be called by its file of weights."""
    if path.is_file() and path.name == WEIGHTS:
        return path.parent
    return path if path.is_dir() else None


def _read_gguf(path: Path) -> LoraFile:
    file, where = GgufFile(path), path.name
    meta = file.metadata
    _expect(meta, "general.type", "adapter", where)
    _expect(meta, "adapter.type", "lora", where)
    alpha = meta.get("adapter.lora.alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= MOST_ALPHA:
        raise InvalidModel(f"{where}: 'adapter.lora.alpha' is {alpha!r:.80}, not a number up to {MOST_ALPHA}")
    if "adapter.alora.invocation_tokens" in meta:
        raise UnsupportedModel(f"{where}: adapters that some tokens switch on (aLoRA) aren't supported")
    halves: dict[str, dict[str, Half]] = {}
    for info in file.tensors.values():
        found = _GGUF_NAME.match(info.name)
        if found is None:
            raise UnsupportedModel(f"{where}: the tensor '{info.name}' is no part of a LoRA adapter that imp knows")
        if info.type.name not in _GGUF_TYPES:
            raise UnsupportedModel(f"{where}: '{info.name}' is {info.type.name}; {', '.join(_GGUF_TYPES)} are read")

        def read(name: str = info.name, shape: tuple[int, ...] = info.shape) -> Floats:
            return dequantise(file.tensors[name].type, file.data(name)).reshape(shape)

        halves.setdefault(found["matrix"], {})[found["half"]] = Half(info.name, info.shape, read)
    return LoraFile(
        path, "gguf", str(meta.get("general.architecture", "")),
        [_joined(name, pair, where, lambda rank: alpha / rank if alpha else 1.0) for name, pair in halves.items()],
    )  # fmt: skip


def _expect(meta: Mapping[str, Any], key: str, wanted: str, where: str) -> None:
    if meta.get(key) != wanted:
        raise UnsupportedModel(f"{where}: '{key}' is {meta.get(key)!r}: this file is no LoRA adapter")


def _read_peft(path: Path) -> LoraFile:
    where = path.name
    config = LoraConfig(read_json(path / CONFIG), f"{where}/{CONFIG}")
    weights = path / WEIGHTS
    if not weights.is_file():
        pickled = (path / "adapter_model.bin").is_file()
        raise ModelFileMissing(f"{where} has no {WEIGHTS}" + ("; save the adapter as safetensors" if pickled else ""))
    file = SafetensorsFile(weights)
    halves: dict[str, dict[str, Half]] = {}
    for stored in file.tensors.values():
        found = _PEFT_NAME.match(stored.name)
        if found is None:
            raise UnsupportedModel(f"{where}: the tensor '{stored.name}' is no part of a LoRA adapter that imp knows")
        if stored.dtype not in _STORED_TYPES:
            raise UnsupportedModel(f"{where}: '{stored.name}' is {stored.dtype}; {', '.join(_STORED_TYPES)} are read")

        def read(name: str = stored.name, dtype: str = stored.dtype, shape: tuple[int, ...] = stored.shape) -> Floats:
            return floats(dtype, file.data(name)).reshape(shape)

        pair, half = halves.setdefault(found["module"], {}), found["half"].lower()
        if half in pair:
            raise InvalidModel(f"{where}: '{stored.name}' and '{pair[half].name}' are the same half")
        pair[half] = Half(stored.name, stored.shape, read)
    parts = []
    for module, pair in halves.items():
        part = _joined(f"{module}.weight", pair, where, lambda rank, module=module: config.factor(module, rank))  # type: ignore[misc]
        parts.append(part)
    return LoraFile(path, "safetensors", "", parts)


def _joined(matrix: str, pair: Mapping[str, Half], where: str, factor: Callable[[int], float]) -> LowRank:
    """Raises InvalidModel where a half is missing, or the two don't fit."""
    for half, other in (("a", "b"), ("b", "a")):
        if half not in pair:
            raise InvalidModel(f"{where}: '{pair[other].name}' is there, its other half (lora_{half}) is missing")
    a, b = pair["a"], pair["b"]
    if len(a.shape) != 2 or len(b.shape) != 2:
        odd = a if len(a.shape) != 2 else b
        raise UnsupportedModel(
            f"{where}: '{odd.name}' has {len(odd.shape)} dimensions: adapters of experts aren't supported"
        )
    rank = a.shape[0]
    if b.shape[1] != rank:
        raise InvalidModel(f"{where}: '{a.name}' is {a.shape}, '{b.name}' is {b.shape}: their ranks differ")
    if not 1 <= rank <= MOST_RANK:
        raise InvalidModel(f"{where}: '{a.name}' is of rank {rank}; 1 to {MOST_RANK} are served")
    return LowRank(matrix, a, b, factor(rank))
