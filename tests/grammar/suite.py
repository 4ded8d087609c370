"""The JSON-Schema-Test-Suite inside the pinned sdist of jsonschema, fetched once and kept outside the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PINNED = "jsonschema==4.26.0"
FOLDER = "json/tests/draft2020-12"


class Group(NamedTuple):
    file: str
    description: str
    schema: Any
    tests: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return f"{self.file}: {self.description}"


@cache
def sdist() -> Path:
    """The sdist, downloaded if need be. Raises RuntimeError with pip's words if it can't be had."""
    folder = Path(tempfile.gettempdir()) / "imp-json-schema-suite"
    folder.mkdir(exist_ok=True)
    found = sorted(folder.glob("jsonschema-4.26.0.tar.gz"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps", PINNED]
        done = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True, check=False, timeout=100)
        found = sorted(folder.glob("jsonschema-4.26.0.tar.gz"))
        if not found:
            raise RuntimeError(f"pip could not download {PINNED}: {done.stderr[-500:]}")
    return found[0]


def groups(optional: bool = False) -> Iterator[Group]:
    """The groups of the required part, or of the optional one."""
    with tarfile.open(sdist()) as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            path = member.name.partition("/")[2]
            if not path.startswith(FOLDER + "/") or not path.endswith(".json"):
                continue
            inner = path[len(FOLDER) + 1 :]
            if ("/" in inner) != optional:
                continue
            stream = archive.extractfile(member)
            assert stream is not None
            for group in json.loads(stream.read()):
                yield Group(inner.removesuffix(".json"), group["description"], group["schema"], group["tests"])


def spelled(data: Any) -> str:
    """JSON text of a test's data; floats as JSON writes them."""
    return json.dumps(data, ensure_ascii=False, default=lambda d: float(d) if isinstance(d, Decimal) else d)
