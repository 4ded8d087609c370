"""Finds the default model's file for tests that need the real thing, pulling it once where it isn't here yet."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from imp_server.weights.pull import pull


@lru_cache
def smollm2() -> Path:
    """The file of IMP_TEST_SMOLLM2, else the catalogue's; a machine that can't get it fails the test."""
    named = os.environ.get("IMP_TEST_SMOLLM2")
    return Path(named) if named else pull("smollm2").path


@lru_cache
def minilm() -> Path:
    """The folder of the small embedding model."""
    return pull("minilm").path
