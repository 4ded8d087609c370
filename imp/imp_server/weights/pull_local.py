"""Takes a model file or folder of this machine into the catalogue, resuming a copy that was cut."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from imp_server.core import ModelFileMissing, readable
from imp_server.weights.file_sets import choose, sidecars, split_parts
from imp_server.weights.gguf import is_gguf
from imp_server.weights.manifest import CHUNK, OnProgress, check_space


def files_at(path: Path) -> tuple[Path, str, list[str]]:
    """(folder, main, files) of the model at `path`: a file with its other parts and sidecars, or a folder."""
    if path.is_dir():
        available = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
        main, files = choose([name for name in available if not name.startswith(".")], "", str(path))
        return path, main, files
    if not path.is_file():
        raise ModelFileMissing(f"no file {path}")
    available = sorted(p.name for p in path.parent.iterdir() if p.is_file())
    parts = split_parts(path.name, available)
    return path.parent, parts[0], parts + (sidecars(path.name, available) if is_gguf(path) else [])


def copy_files(source: Path, files: list[str], folder: Path, on_progress: OnProgress) -> dict[str, str]:
    """Copy into `folder`; path -> sha256. A half-copied file goes on where it stopped if its source is unchanged.

    A name that isn't UTF-8 is kept as `readable` spells it.
    """
    check_space(folder, sum((source / name).stat().st_size for name in files))
    return {kept: _copy(source / name, folder / kept, kept, on_progress) for name in files for kept in [readable(name)]}


def _copy(source: Path, target: Path, name: str, on_progress: OnProgress) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    note = target.with_name(target.name + ".from")
    stat = source.stat()
    origin = json.dumps([str(source.resolve()), stat.st_size, stat.st_mtime_ns])
    if not (target.exists() and note.exists() and note.read_text() == origin):
        target.unlink(missing_ok=True)
        note.write_text(origin)
    digest = hashlib.sha256()
    done = 0
    with source.open("rb") as reader, target.open("a+b") as writer:
        writer.seek(0)
        while (chunk := writer.read(CHUNK)) and chunk == reader.read(len(chunk)):
            digest.update(chunk)
            done += len(chunk)
        reader.seek(done)
        writer.truncate(done)  # what a power cut left isn't always what was written
        while chunk := reader.read(CHUNK):
            writer.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            on_progress(name, done, stat.st_size)
        writer.flush()
        os.fsync(writer.fileno())
    note.unlink()
    return digest.hexdigest()
