"""What lies on the disk and serves no model: packed weights, cut pulls, caches of models that are gone."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from imp_server.backends.cpu.pack_files import PARTIAL, SUFFIX, pack_folder, packs_of, table_of, why_unused
from imp_server.config import Config, imp_home
from imp_server.core import ConfigError
from imp_server.weights.catalogue import models_folder, pulled_models
from imp_server.weights.manifest import MANIFEST, read_manifest, unwritable

_BEING_WRITTEN_S = 3600.0
"""A half-written pack that hasn't grown for so long is left over."""
_PREFIX_SUFFIXES = (".kv", ".states")


class Leftover(NamedTuple):
    """`why`: what it is and why nobody needs it, for people."""

    path: Path
    n_bytes: int
    why: str


def leftovers(config: Config) -> list[Leftover]:
    """All of it, largest first."""
    found = [*_packs(config), *_pulls(), *_prefixes(config), *_stores()]
    return sorted(found, key=lambda each: -each.n_bytes)


def caches_of(config: Config, model: Path) -> list[Leftover]:
    """What is kept for the model at this path besides its files: packed weights and prefixes."""
    found = [_leftover(path, "packed weights") for path in packs_of(pack_folder(config.cpu.pack_cache_path), model)]
    return found + [_leftover(path, "kept prefixes") for path in _prefix_files(config, _prefix_digest(model))]


def delete(found: Leftover) -> int:
    """The bytes freed; what has gone meanwhile counts as none. Raises ConfigError where we may not."""
    try:
        if found.path.is_dir():
            shutil.rmtree(found.path)
        else:
            found.path.unlink()
    except FileNotFoundError:
        return 0
    except OSError as error:
        fault = unwritable(found.path, error)
        raise ConfigError(f"{fault.message} (or delete {found.path} yourself)") from None
    return found.n_bytes


def _packs(config: Config) -> Iterator[Leftover]:
    folder = pack_folder(config.cpu.pack_cache_path)
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if why := why_unused(path):
            yield _leftover(path, f"packed weights: {why}")
    for path in sorted(folder.glob(f"*{PARTIAL}")):
        if _age_s(path) > _BEING_WRITTEN_S:
            yield _leftover(path, "packed weights that were never finished")


def _pulls() -> Iterator[Leftover]:
    """Folders of pulls that stopped; one that runs holds its lock."""
    models = models_folder()
    for path in sorted(models.glob(".partial-*")):
        lock = models / path.name.replace(".partial-", ".lock-", 1)
        if not _is_locked(lock):
            yield _leftover(path, "a pull that was stopped; another pull would go on from there")
    for path in sorted(models.glob(".old-*")):
        yield _leftover(path, "a model that was replaced")
    for path in sorted(models.glob("[!.]*")):
        if path.is_dir() and read_manifest(path) is None:
            yield _leftover(path, f"a model that can't be used: its {MANIFEST} can't be read")


def _prefixes(config: Config) -> Iterator[Leftover]:
    """Of models that are neither pulled nor packed: their files are named by the model's path alone."""
    paths = [pulled.path for pulled in pulled_models()]
    packs = pack_folder(config.cpu.pack_cache_path).glob(f"*{SUFFIX}")
    paths += [
        Path(os.fsdecode(table.model))
        for pack in packs
        if (table := table_of(pack)) and Path(os.fsdecode(table.model)).exists()
    ]
    known = {_prefix_digest(path) for path in paths}
    for path in _prefix_files(config, ""):
        if path.name.partition("-")[0] not in known and not _is_locked(path):
            yield _leftover(path, "kept prefixes of no model that is known here")


def _prefix_files(config: Config, digest: str) -> list[Path]:
    if not config.prefix_cache.path:
        return []
    folder = Path(config.prefix_cache.path).expanduser()
    return sorted(path for path in folder.glob(f"{digest}*") if path.suffix in _PREFIX_SUFFIXES)


def _prefix_digest(model: Path) -> str:
    """As engine/fingerprint.py and schedule/tiers/opening.py name them."""
    return hashlib.blake2b(str(model.resolve()).encode(), digest_size=32).hexdigest()[:16]


def _stores() -> Iterator[Leftover]:
    for path in sorted(imp_home().glob("responses.sqlite*.damaged-*")):
        yield _leftover(path, "a store of responses that was damaged")


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _leftover(path: Path, why: str) -> Leftover:
    """Sizes as the disk counts them, not as files say: a pack may have holes."""
    n_bytes = 0
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        try:
            n_bytes += each.stat().st_blocks * 512 if each.is_file() else 0
        except OSError:
            continue
    return Leftover(path, n_bytes, why)
