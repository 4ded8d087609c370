"""The JSON-Schema-Test-Suite inside the pinned sdist of jsonschema, fetched once and kept outside the checkout."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from tests.grammar.fetched import archive

VERSION = "4.26.0"
NEWEST = "draft2020-12"


class Group(NamedTuple):
    file: str
    description: str
    schema: Any
    tests: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return f"{self.file}: {self.description}"


def groups(optional: bool = False, draft: str = NEWEST) -> Iterator[Group]:
    """The groups of a draft's required part, or of the optional one."""
    folder = f"json/tests/{draft}/"
    with tarfile.open(archive("jsonschema", VERSION, "sdist")) as files:
        for member in sorted(files.getmembers(), key=lambda m: m.name):
            path = member.name.partition("/")[2]
            if not path.startswith(folder) or not path.endswith(".json"):
                continue
            inner = path[len(folder) :]
            if ("/" in inner) != optional:
                continue
            stream = files.extractfile(member)
            assert stream is not None
            for group in json.loads(stream.read()):
                yield Group(inner.removesuffix(".json"), group["description"], group["schema"], group["tests"])


def spelled(data: Any) -> str:
    """JSON text of a test's data; floats as JSON writes them."""
    return json.dumps(data, ensure_ascii=False, default=lambda d: float(d) if isinstance(d, Decimal) else d)
