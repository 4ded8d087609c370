"""The drawings of the pages that explain: `python -m analysis.drawings` writes them into docs/images.

Each is drawn from a run of the very code that its page is about, and comes out the same each time.
"""

from __future__ import annotations

from pathlib import Path

from analysis.drawings.made import FOLDER, drawings


def main() -> None:
    for name, svg in drawings().items():
        Path(FOLDER, name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
