"""docs/api.md is what the contracts say now; it and the page of modules leave nothing out."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.reference_pages import DOCS, METHODS, PACKAGE, Contracts, api_page, limits, modules_page


@pytest.fixture(scope="module")
def api() -> str:
    return api_page()


def test_it_is_not_stale(api: str) -> None:
    assert (DOCS / "api.md").read_text(encoding="utf-8") == api, "make docs"


def test_every_operation_is_there(api: str) -> None:
    n_found = 0
    for document in Contracts().documents.values():
        for path, item in document.get("paths", {}).items():
            for method in METHODS:
                if method in item:
                    assert f"### `{method.upper()} {path}`\n" in api
                    n_found += 1
    assert n_found > 60
    assert "| `messages` (required) |" in api and "[LlamaFields](#llamafields)" in api and "### LlamaFields\n" in api


def test_every_module_says_what_it_is() -> None:
    page = modules_page()
    silent = [p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" and f"| `{Path(p).name}` |" not in page]
    assert not silent


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"minimum": 0, "maximum": 10}, " 0 to 10"),
        ({"minimum": 1, "maximum": 2147483647}, " from 1"),
        ({"maximum": 1}, " to 1"),
        ({}, ""),
    ],
)
def test_limits(schema: dict[str, int], said: str) -> None:
    assert limits(schema) == said
