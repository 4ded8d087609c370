"""The models that lie in a folder: single files, the first part of a split one, folders of either format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from imp_server.core import readable
from imp_server.weights.file_sets import SIDECARS
from imp_server.weights.manifest import read_manifest

_GGUF = re.compile(r"(?i)\.gguf$")
_PART = re.compile(r"(?i)-(\d{5})-of-\d{5}\.gguf$")
_NO_MODEL = (*SIDECARS, "imatrix")


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model by its place alone: it hasn't been opened."""

    name: str
    path: Path
    """What to open: the (first) .gguf file, or the folder."""
    file_bytes: int
    is_pulled: bool
    """imp fetched it: its folder has a manifest."""


def models_in(folder: Path) -> list[FoundModel]:
    """By name; of two with one name the first. What begins with a dot is left out. Empty for no folder."""
    try:
        entries = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    except OSError:
        return []
    found: dict[str, FoundModel] = {}
    for entry in entries:
        model = _at(entry)
        if model is not None:
            found.setdefault(model.name, model)
    return [found[name] for name in sorted(found)]


def _at(entry: Path) -> FoundModel | None:
    if entry.is_file():
        return _file(entry, name="") if _is_main(entry) else None
    if not entry.is_dir():
        return None
    manifest = read_manifest(entry)
    if manifest is not None:
        path = entry / manifest.main if manifest.main else entry
        return FoundModel(manifest.name, path, manifest.size, is_pulled=True)
    try:
        files = sorted(entry.iterdir())
    except OSError:
        return None
    main = next((path for path in files if path.is_file() and _is_main(path)), None)
    if main is not None:
        return _file(main, name=readable(entry.name))
    if (entry / "config.json").is_file():
        return FoundModel(readable(entry.name), entry, _size(files), is_pulled=False)
    return None


def _is_main(path: Path) -> bool:
    part = _PART.search(path.name)
    is_first = part is None or int(part[1]) == 1
    return bool(_GGUF.search(path.name)) and is_first and not path.name.startswith(_NO_MODEL)


def _file(path: Path, *, name: str) -> FoundModel:
    """`name`: of the folder that is the model's own; "" = the file's."""
    part = _PART.search(path.name)
    stem = path.name[: part.start()] if part else _GGUF.sub("", path.name)
    parts = [other for other in path.parent.iterdir() if part and other.name.startswith(f"{stem}-")] or [path]
    return FoundModel(name or readable(stem), path, _size(parts), is_pulled=False)


def _size(files: list[Path]) -> int:
    total = 0
    for file in files:
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return total
