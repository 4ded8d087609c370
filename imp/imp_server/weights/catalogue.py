"""The models on this machine, and where a model's name leads.

Owner of IMP_HOME/models: one folder per model, written once by pull.py and renamed into place whole.
"""

from __future__ import annotations

import difflib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from imp_server.config import imp_home
from imp_server.core import InvalidModel, ModelFileMissing, readable
from imp_server.weights.gguf import is_gguf
from imp_server.weights.known import DEFAULT, KNOWN, HubModel, Known, Wheel
from imp_server.weights.manifest import MANIFEST, Manifest, damage, read_manifest

NO_MODEL = "none"
_SUFFIX = re.compile(r"(?i)\.gguf$")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model of the catalogue that is here."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def path(self) -> Path:
        """What to open: the (first) .gguf file, or the folder."""
        return self.folder / self.manifest.main if self.manifest.main else self.folder


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a name means: `pulled` if it is here, else the source to pull it from, or a plain `path`."""

    name: str
    path: Path | None = None
    pulled: Pulled | None = None
    source: Wheel | HubModel | None = None

    @property
    def local(self) -> Path | None:
        """The file or folder to open; None if it has to be pulled first."""
        return self.pulled.path if self.pulled else self.path


def models_folder() -> Path:
    return imp_home() / "models"


def folder_name(name: str) -> str:
    """The folder of a model's name: readable, one path component, no two names alike."""
    spelled = {"/": "+", ":": "%"}
    return re.sub(r"[^A-Za-z0-9._-]", lambda m: spelled.get(m[0]) or f"={ord(m[0]):x}=", name)


def pulled_models() -> list[Pulled]:
    """Every model that is here, by name."""
    folder = models_folder()
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != ".") if folder.is_dir() else []
    return [Pulled(path, manifest) for path in folders if (manifest := read_manifest(path))]


def find_pulled(name: str) -> Pulled | None:
    """The model `name` if it is here and whole. Raises InvalidModel if files are missing or cut."""
    folder = models_folder() / folder_name(name)
    manifest = read_manifest(folder)
    if manifest is None:
        if folder.is_dir():
            raise InvalidModel(f"{name} is damaged: {MANIFEST} can't be read; run `imp rm {name}` and pull it again")
        return None
    if wrong := damage(folder, manifest):
        raise InvalidModel(f"{name} is damaged: {wrong}; run `imp rm {name}` and pull it again")
    return Pulled(folder, manifest)


def hub_source(text: str) -> tuple[str, HubModel] | None:
    """(name, source) of hf:org/repo[:file], hf://org/repo[:file] or org/repo[:file]; None if it isn't one."""
    bare = text.removeprefix("hf:").removeprefix("//")
    repo, _, file = bare.partition(":")
    if not _REPO.fullmatch(repo) or (not text.startswith("hf:") and _SUFFIX.search(repo)):
        return None
    return f"hf:{repo}:{file}" if file else f"hf:{repo}", HubModel(repo, file)


def find(name: str, models_dir: str = "") -> NamedModel | None:
    """What `name` means; "" = the default model. None for the name `none`: no model.

    In this order: an existing path, a file or folder in `models_dir`, a model that is here, a known name, a
    repository of the hub. Raises ModelFileMissing for anything else.
    """
    name = name.strip() or DEFAULT
    if name == NO_MODEL:
        return None
    if found := _on_disk(name, models_dir):
        return NamedModel(_stem(found), path=found)
    if name in KNOWN or (pulled := find_pulled(name)) is None:
        return _to_pull(name)
    return NamedModel(name, pulled=pulled)


def _on_disk(name: str, models_dir: str) -> Path | None:
    path = Path(name).expanduser()
    if path.exists() and (path.is_file() or name.startswith((".", "/", "~")) or (path / "config.json").exists()):
        return path
    if models_dir and "/" not in name:
        folder = Path(models_dir).expanduser()
        return next((p for p in (folder / name, folder / f"{name}.gguf", folder / f"{name}.GGUF") if p.exists()), None)
    return None


def _stem(path: Path) -> str:
    return readable(_SUFFIX.sub("", path.name) if path.is_file() else path.resolve().name)


def _to_pull(name: str) -> NamedModel:
    known: Known | None = KNOWN.get(name)
    if known:
        return NamedModel(name, pulled=find_pulled(name), source=known.source)
    looks_like_path = name.startswith((".", "/", "~")) or (_SUFFIX.search(name) and not name.startswith("hf:"))
    if not looks_like_path and (hub := hub_source(name)):
        return NamedModel(hub[0], pulled=find_pulled(hub[0]), source=hub[1])
    if looks_like_path:
        raise ModelFileMissing(f"no model file {name}")
    if name.startswith("hf:"):
        raise ModelFileMissing(f"{name} is no repository of the hub; write hf:org/repo or hf:org/repo:FILE")
    names = {**KNOWN, **{pulled.name: None for pulled in pulled_models()}}
    close = difflib.get_close_matches(name, names, 2, 0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known names: {', '.join(KNOWN)}"
    raise ModelFileMissing(f"no model {name}: it is no file and no known name; {hint}")


def tagged(name: str) -> str:
    """hf:org/repo as it was fetched, where that was with a quantisation or a file, and only once; else as it is."""
    hub = hub_source(name) if name.startswith("hf:") else None
    if hub is None or hub[1].file or find_pulled(hub[0]) is not None:
        return name
    there = [pulled.name for pulled in pulled_models() if pulled.name.startswith(f"{hub[0]}:")]
    return there[0] if len(there) == 1 else name


def model_paths(name: str) -> list[Path]:
    """What a server may have opened of a model that is here: its file and its folder. Empty if it isn't here."""
    folder = models_folder() / folder_name(name)
    files = [path for path in folder.rglob("*") if path.is_file() and is_gguf(path)] if folder.is_dir() else []
    return [folder, *sorted(files)]


def remove(name: str) -> int:
    """Delete a pulled model; the bytes freed. Raises ModelFileMissing if it isn't here."""
    folder = models_folder() / folder_name(name)
    manifest = read_manifest(folder)
    if manifest is None and not folder.is_dir():
        here = ", ".join(pulled.name for pulled in pulled_models()) or "none"
        raise ModelFileMissing(f"{name} is not among the pulled models ({here})")
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    shutil.rmtree(folder)
    return size
