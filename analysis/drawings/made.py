"""All drawings by file name."""

from __future__ import annotations

from pathlib import Path

from analysis.drawings import cache, drafts, grammar, kernels, scheduler

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"


def drawings() -> dict[str, str]:
    """File name in docs/images -> SVG."""
    makers = {"scheduler": scheduler, "cache": cache, "drafts": drafts, "grammar": grammar, "kernels": kernels}
    return {f"{name}.svg": module.draw() for name, module in makers.items()}
