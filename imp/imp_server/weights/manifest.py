"""What lies beside a pulled model: where it came from, and size, time and digest of each file, made once."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from imp_server.core import CapacityExceeded, ConfigError, InvalidModel, UserFault

MANIFEST = "imp.json"
CHUNK = 1 << 20

OnProgress = Callable[[str, int, int], None]
"""(file, bytes done, bytes in all or 0 when unknown); may come from several threads."""


class FileRecord(msgspec.Struct, frozen=True):
    """One file of a model, `path` relative to the model's folder."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """`main` is the file to open, relative to the folder; empty = the folder itself."""

    name: str
    source: str
    main: str
    files: tuple[FileRecord, ...]
    pulled_at: float = 0.0
    """Unix seconds."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a model folder; None if there is none that can be read."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None


def write_manifest(folder: Path, name: str, source: str, main: str, digests: dict[str, str]) -> Manifest:
    """Record the files named in `digests` (path -> sha256)."""
    records = [FileRecord(path, (folder / path).stat().st_size, digest) for path, digest in sorted(digests.items())]
    manifest = Manifest(name, source, main, tuple(records), time.time())
    with (folder / MANIFEST).open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    return manifest


def damage(folder: Path, manifest: Manifest) -> str:
    """What is wrong with a pulled model by size alone, or ""; the digest isn't made again."""
    for file in manifest.files:
        try:
            size = (folder / file.path).stat().st_size
        except OSError:
            return f"{file.path} is missing"
        if size != file.size:
            return f"{file.path} has {size} bytes instead of {file.size}"
    return ""


def sha256_of(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file; `on_bytes` is told the bytes read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if on_bytes:
                on_bytes(done)
    return digest.hexdigest()


def check_digest(name: str, found: str, expected: str) -> None:
    """Raises InvalidModel unless they are equal; an empty `expected` passes."""
    if expected and found != expected:
        raise InvalidModel(f"{name} is not the expected file: sha256 {found}, expected {expected}; pull it again")


def make_folder(path: Path) -> None:
    """Create a folder of ours. Raises ConfigError if it can't be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise unwritable(path, PermissionError("permission denied"))


def unwritable(path: Path, error: OSError) -> UserFault:
    """The error for a file system that won't take our files."""
    if error.errno in {28, 122}:  # ENOSPC, EDQUOT
        return CapacityExceeded(f"no space left in {path}; free some, or set IMP_HOME to another disk")
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"can't write {path} ({reason}); set IMP_HOME to a folder that you can write")


def check_space(folder: Path, needed: int) -> None:
    """Raises CapacityExceeded if `needed` bytes don't fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CapacityExceeded(
            f"{needed / 1e9:.1f} GB are needed in {folder} and {free / 1e9:.1f} GB are free; "
            "free some, or set IMP_HOME to another disk"
        )
