"""docs/map.md has one line for every package and top-level module, and names nothing that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_map_is_true() -> None:
    package = ROOT / "imp" / "imp_server"
    real = {f"{p.name}/" for p in package.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    real |= {p.name for p in package.glob("*.py") if p.name not in {"__init__.py", "__main__.py"}}
    told = set(re.findall(r"^\* `([\w/.]+)`", (ROOT / "docs" / "map.md").read_text(), re.MULTILINE))
    assert told == real
