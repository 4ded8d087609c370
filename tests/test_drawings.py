"""The drawings of docs/ are those that the code makes now, well-formed, and shown by the pages they explain."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from analysis.drawings.made import FOLDER, drawings

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return drawings()


def test_they_are_not_stale(made: dict[str, str]) -> None:
    stale = [name for name, svg in made.items() if (FOLDER / name).read_text(encoding="utf-8") != svg]
    assert not stale, f"{stale}: make docs"
    assert {path.name for path in FOLDER.glob("*.svg")} == made.keys()
    assert drawings() == made, "the same each time"


def test_pages_show_them(made: dict[str, str]) -> None:
    for name, svg in made.items():
        page = (DOCS / name).with_suffix(".md").read_text(encoding="utf-8")
        assert f"](images/{name})" in page, name
        words = [text.text or "" for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        assert len(words) > 10
