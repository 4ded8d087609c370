"""constraints.txt has a version of all that pyproject.toml asks for, and one that it allows."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any


def test_each_dependency_has_a_version_that_is_allowed(repo_root: Path) -> None:
    requirements: Any = importlib.import_module("packaging.requirements")  # beside our own folder of that name
    lines = (repo_root / "constraints.txt").read_text().splitlines()
    kept = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    for line in (*project["dependencies"], *project["optional-dependencies"]["test"]):
        wanted = requirements.Requirement(line)
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if wanted.marker is None or name in kept:  # what a platform alone needs may be missing where they were written
            assert wanted.specifier.contains(kept[name], prereleases=True), line
