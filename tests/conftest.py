"""Shared fixtures. The checkout's own package is what subprocesses import, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dead_ends import none_allowed

ROOT = Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "imp"), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file."""
    from tests.real_model import smollm2

    return smollm2()


@pytest.fixture(autouse=True)
def no_dead_ends(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("dead_end"):
        yield
        return
    with none_allowed():
        yield
