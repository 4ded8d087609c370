"""The site has each page of docs/ in its navigation, and no page links to one that isn't there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from analysis.site_pages import PAGES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in nav for value in entry.values() for page in pages(value)]


def test_the_navigation_has_every_page() -> None:
    nav = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(nav) == sorted([*(path.name for path in DOCS.glob("*.md")), *PAGES])


def test_links_lead_to_pages() -> None:
    checked = 0
    for path in [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"
            checked += 1
    assert checked > 30
