"""docs/map.md has one line for every package and top-level module, and the pages of docs/ name no file that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
STANDS_FOR_MANY = re.compile(r"[A-Z]")
"""As in `text/tools/NAME.py`."""


def test_map_is_true() -> None:
    package = ROOT / "imp" / "imp_server"
    real = {f"{p.name}/" for p in package.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    real |= {p.name for p in package.glob("*.py") if p.name not in {"__init__.py", "__main__.py"}}
    told = set(re.findall(r"^\* `([\w/.]+)`", (ROOT / "docs" / "map.md").read_text(), re.MULTILINE))
    assert told == real


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_pages_name_are_there(page: Path) -> None:
    named = set(re.findall(r"[\w/]+\.py\b", page.read_text()))
    files = [
        f"/{path.relative_to(ROOT)}"
        for top in ("imp", "tests", "analysis", "conformance")
        for path in (ROOT / top).rglob("*.py")
    ]
    gone = {
        name for name in named if not STANDS_FOR_MANY.search(name) and not any(f.endswith(f"/{name}") for f in files)
    }
    assert not gone
