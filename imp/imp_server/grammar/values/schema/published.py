"""The published meta-schemas: the only documents besides its own to which a schema's reference may lead."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_WORDS_2019 = ("core", "applicator", "validation", "meta-data", "format", "content")
_WORDS_2020 = (
    "core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation", "format-assertion", "content",
)  # fmt: skip
ADDRESSES = frozenset(
    [f"http://json-schema.org/draft-0{n}/schema" for n in (4, 6, 7)]
    + [f"https://json-schema.org/draft/{year}/schema" for year in ("2019-09", "2020-12")]
    + [f"https://json-schema.org/draft/2019-09/meta/{name}" for name in _WORDS_2019]
    + [f"https://json-schema.org/draft/2020-12/meta/{name}" for name in _WORDS_2020]
)
"""Without fragments. Any other spelling of them is another document."""


def published(uri: str) -> dict[str, Any]:
    """The meta-schema or vocabulary of one of the ADDRESSES, shared: never write to it."""
    return _documents()[uri]


@cache
def _documents() -> dict[str, dict[str, Any]]:
    """Read from the files of the package jsonschema-specifications: importing it takes most of a second."""
    package = find_spec("jsonschema_specifications")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("jsonschema-specifications isn't installed, although imp depends on it")
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((Path(package.origin).parent / "schemas").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            document = json.loads(path.read_text(encoding="utf-8"))
            found[str(document.get("$id", document.get("id"))).rstrip("#")] = document
    return found
