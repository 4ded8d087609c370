"""A Hugging Face model folder: its JSON files and its shards of safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel
from imp_server.weights.safetensors import SafetensorsFile, StoredTensor

INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 64 << 20


class HfFolder:
    """Owner of the folder's maps. Files are opened when first asked for."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileMissing if there is no config.json."""
        self.path = path
        if not (path / "config.json").is_file():
            raise ModelFileMissing(f"{path} has no config.json; point at a model folder or a .gguf file")

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return read_json(self.path / "config.json")

    def optional_json(self, name: str) -> Mapping[str, Any]:
        """An empty mapping if the file isn't there. Raises InvalidModel if it can't be read."""
        path = self.path / name
        return read_json(path) if path.is_file() else {}

    @cached_property
    def files(self) -> list[SafetensorsFile]:
        """The shards that the index names, or all safetensors of the folder."""
        if (self.path / INDEX).is_file():
            names = sorted(set(self._weight_map().values()))
            missing = [n for n in names if not (self.path / n).is_file()]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise ModelFileMissing(f"{INDEX} names {missing[0]}{more}, which isn't in {self.path}")
        else:
            names = sorted(p.name for p in self.path.glob("*.safetensors"))
            if not names:
                pickled = [*self.path.glob("*.bin"), *self.path.glob("*.pt")]
                what = "convert pickled weights to safetensors or GGUF first" if pickled else "the weights are missing"
                raise UnsupportedModel(f"{self.path} has no .safetensors files; {what}")
        return [SafetensorsFile(self.path / name) for name in names]

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """All tensors by name. Raises InvalidModel for one that two shards claim or that the index promises in vain."""
        found = {name: stored for name, (stored, _) in self._where.items()}
        if (self.path / INDEX).is_file():
            lost = sorted(set(self._weight_map()) - set(found))
            if lost:
                raise InvalidModel(f"{INDEX} names the tensor '{lost[0]}', which its shard doesn't hold")
        return found

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        if name not in self._where:
            raise InvalidModel(f"{self.path.name}: there is no tensor '{name}'")
        return self._where[name][1].data(name)

    @property
    def nbytes(self) -> int:
        return sum(f.nbytes for f in self.files)

    @cached_property
    def _where(self) -> dict[str, tuple[StoredTensor, SafetensorsFile]]:
        found: dict[str, tuple[StoredTensor, SafetensorsFile]] = {}
        for file in self.files:
            for name, stored in file.tensors.items():
                if name in found:
                    raise InvalidModel(f"the tensor '{name}' is in {found[name][1].path.name} and in {file.path.name}")
                found[name] = (stored, file)
        return found

    def _weight_map(self) -> Mapping[str, str]:
        weight_map = read_json(self.path / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise InvalidModel(f"{INDEX}: 'weight_map' isn't an object of file names")
        for name in weight_map.values():
            # An index from a stranger must not reach outside its folder.
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise InvalidModel(f"{INDEX}: '{name}' isn't the name of a shard")
        return weight_map


def read_json(path: Path) -> Mapping[str, Any]:
    """Raises InvalidModel, ModelFileMissing."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise InvalidModel(f"{path.name}: larger than {_MAX_JSON_BYTES >> 20} MiB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileMissing(f"can't read {path}: {error}") from None
    except (ValueError, RecursionError):
        raise InvalidModel(f"{path.name} isn't JSON") from None
    if not isinstance(value, dict):
        raise InvalidModel(f"{path.name} isn't a JSON object")
    return value
