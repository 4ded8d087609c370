"""Archives of PyPI that tests read: fetched once, each version into a folder of its own outside the checkout."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal


@cache
def archive(name: str, version: str, kind: Literal["wheel", "sdist"]) -> Path:
    """The archive, downloaded if need be. Raises RuntimeError with pip's words if it can't be had."""
    folder = Path(tempfile.gettempdir()) / f"imp-{name}-{version}"
    folder.mkdir(exist_ok=True)
    pattern = f"{name}-{version}*" + (".whl" if kind == "wheel" else ".tar.gz")
    if not any(folder.glob(pattern)):
        refused = "--only-binary" if kind == "wheel" else "--no-binary"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", refused, ":all:", f"{name}=={version}"]
        done = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True, check=False, timeout=100)
        if not any(folder.glob(pattern)):
            raise RuntimeError(f"pip could not download {name} {version}: {done.stderr[-500:]}")
    return next(folder.glob(pattern))
