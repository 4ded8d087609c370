"""Opens a model: path -> header -> family (found by folder) -> description and tensors, checked against each other."""

from __future__ import annotations

import os
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from imp_server.core import ModelFileMissing, UnsupportedModel
from imp_server.models import families
from imp_server.models.architecture import Architecture
from imp_server.models.shapes import check_shapes
from imp_server.models.source import GgufSource, ModelSource
from imp_server.weights.gguf import GgufFile
from imp_server.weights.header import ModelHeader, header_of_gguf


class Family(Protocol):
    """What a module of models/families offers."""

    GGUF_ARCHITECTURES: tuple[str, ...]

    def describe(self, header: ModelHeader, file: GgufFile) -> Architecture: ...

    def names(self, architecture: Architecture, file: GgufFile) -> dict[str, str]: ...


def open_model(path: str | os.PathLike[str]) -> ModelSource:
    """Raises ModelFileMissing, InvalidModel, UnsupportedModel."""
    path = Path(path)
    if not path.exists():
        raise ModelFileMissing(f"there is no model at {path}")
    if path.is_dir() or path.suffix != ".gguf":
        raise UnsupportedModel(f"{path.name}: not a .gguf file")
    file = GgufFile(path)
    header = header_of_gguf(file)
    family = families_by_architecture().get(header.architecture)
    if family is None:
        known = ", ".join(sorted(families_by_architecture()))
        raise UnsupportedModel(f"{path.name}: the architecture {header.architecture!r} isn't supported ({known} are)")
    architecture = family.describe(header, file)
    names = family.names(architecture, file)
    check_shapes(architecture, {ours: file.tensors[theirs].shape for ours, theirs in names.items()}, path.name)
    return GgufSource(file, header, architecture, names)


@cache
def families_by_architecture() -> dict[str, Family]:
    """GGUF's `general.architecture` -> the family module that describes it."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(families.__path__):
        family = cast(Family, import_module(f"{families.__name__}.{module.name}"))
        for name in family.GGUF_ARCHITECTURES:
            if name in found:
                raise RuntimeError(f"two families claim the architecture {name}")
            found[name] = family
    return found
