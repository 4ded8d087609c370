"""A hook of mkdocs: the pages that are made when the site is, so that they can't be stale."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from analysis.reference_pages import modules_page

PAGES = {"modules.md": modules_page}


def on_files(files: Any, config: Any) -> Any:
    """Adds them to what the site is made of."""
    from mkdocs.structure.files import File

    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    return files
