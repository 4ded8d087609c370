"""Shared fixtures. The checkout's own package is what subprocesses import, too."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from imp_server.native import library_path
from imp_server.weights.catalogue import models_folder

from tests.dead_ends import none_allowed

NATIVE = ("engine", "grammar")
SLOW_TIMEOUT_S = 1800
ROOT = Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "imp"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tests start hundreds of processes, which would all compile the same sources where nobody may keep bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / "build" / "pycache"))


def own_home() -> Path:
    """IMP_HOME of a run and of all its processes: packs, stores and histories of tests leave nothing with the user.

    Models are the user's: they are large, and fetched once.
    """
    home = Path(tempfile.mkdtemp(prefix="imp-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    models_folder().mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(models_folder(), target_is_directory=True)
    return home


if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have their starter's
    os.environ["IMP_HOME"] = str(own_home())


def pytest_sessionstart() -> None:
    """Tests of native code are skipped where it isn't built; CI, which builds it, must never skip them."""
    required = os.environ.get("CI") or os.environ.get("REQUIRE_NATIVE")
    if required and (missing := [name for name in NATIVE if library_path(name) is None]):
        raise pytest.UsageError(
            f"CI is set, and these native libraries aren't built: {', '.join(missing)} (make native)"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A slow test without a time limit of its own gets one that a busy machine keeps, too."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


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
