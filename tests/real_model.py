"""Finds the default model's file for tests that need the real thing."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@lru_cache
def _find() -> Path | None:
    named = os.environ.get("IMP_TEST_SMOLLM2")
    if named:
        return Path(named)
    home = Path(os.environ.get("IMP_HOME") or Path.home() / ".cache" / "imp")
    return next(home.rglob(FILE), None) if home.is_dir() else None


def smollm2() -> Path:
    """The file; skips the test on a machine that hasn't pulled it."""
    path = _find()
    if path is None:
        pytest.skip("the default model isn't here: run `imp pull smollm2` or set IMP_TEST_SMOLLM2")
    return path
