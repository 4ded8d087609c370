"""Opens the file of a file tier: one per model and fingerprint in a folder, locked; or one without a name."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from pathlib import Path

from imp_server.core import ConfigError

log = logging.getLogger(__name__)
_SUFFIX = ".kv"
STATES = ".states"
"""Suffix of a file that keeps snapshots."""


def open_unnamed(folder: Path) -> int:
    """A file that vanishes with its process, whatever ends it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix="spill-", suffix=_SUFFIX, dir=folder)
    os.unlink(name)
    return fd


def open_kept(folder: Path, model: bytes, fingerprint: bytes, suffix: str = _SUFFIX) -> int | None:
    """The file of this fingerprint, locked for this process; None (with a line in the log) if that can't be had.

    Files that the same model left under another fingerprint are removed. Raises ConfigError if `folder` is a file.
    """
    name = f"{model.hex()[:16]}-{fingerprint.hex()[:32]}{suffix}"
    try:
        # Asking for it raises, too: no right to look, a name too long.
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--prefix-cache names a folder, and {folder} is a file: give another path")
        folder.mkdir(parents=True, exist_ok=True)
        fd = _locked(folder / name)
    except OSError as error:
        log.warning("%s can't keep the prefix cache (%s): it won't survive a restart", folder, error.strerror)
        return None
    if fd is None:
        log.warning("another server keeps its prefix cache in %s: this one runs without keeping its own", folder)
        return None
    _remove_stale(folder, f"{model.hex()[:16]}-*{suffix}", name)
    return fd


def _locked(path: Path) -> int | None:
    """None if another process holds it. A process that is killed lets go of its lock."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking somebody may have removed it as stale: then ours has no name any more.
            if path.exists() and os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        os.close(fd)


def _remove_stale(folder: Path, pattern: str, name: str) -> None:
    for other in folder.glob(pattern):
        if other.name == name:
            continue
        try:
            fd = os.open(other, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                other.unlink()
            finally:
                os.close(fd)
        except OSError:
            continue  # in use by another server, or not ours to remove
        log.info("the prefix cache was made by another model file, layout or kernel: %s is removed", other.name)
