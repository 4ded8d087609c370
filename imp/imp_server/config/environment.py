"""The only reader of the environment."""

from __future__ import annotations

import os
from pathlib import Path


def environment(name: str) -> str:
    """An environment variable, stripped; "" when unset."""
    return os.environ.get(name, "").strip()


def imp_variables() -> dict[str, str]:
    """Every IMP_* variable that isn't empty."""
    return {name: value.strip() for name, value in os.environ.items() if name.startswith("IMP_") and value.strip()}


def child_environment(**changes: str) -> dict[str, str]:
    """Our environment with `changes`, for a child process."""
    return {**os.environ, **changes}


def imp_home() -> Path:
    """Where models, packed weights and stored responses live: IMP_HOME, else `imp` in the user's cache folder."""
    if home := environment("IMP_HOME"):
        return Path(home).expanduser()
    cache = environment("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "imp"
