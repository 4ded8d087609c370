"""The only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def environment(name: str) -> str:
    """An environment variable, stripped; "" when unset."""
    return os.environ.get(name, "").strip()


def imp_variables() -> dict[str, str]:
    """Every IMP_* variable that isn't empty."""
    return {name: value.strip() for name, value in os.environ.items() if name.startswith("IMP_") and value.strip()}


def put_variables(variables: Mapping[str, str]) -> None:
    """For libraries that read them, and for child processes."""
    os.environ.update(variables)


def all_variables() -> dict[str, str]:
    """The whole environment, for a command that has another program's variables."""
    return dict(os.environ)


_FOR_CHILDREN = frozenset({"IMP_HOME", "IMP_CPU_ISA"})


def child_environment(**changes: str) -> dict[str, str]:
    """Our environment with `changes`, for a child process: without knobs, which it is told otherwise, and keys."""
    kept = {name: value for name, value in os.environ.items() if name in _FOR_CHILDREN or not _is_ours(name)}
    return {**kept, **changes}


def _is_ours(name: str) -> bool:
    return name.startswith("IMP_") or name.endswith("_API_KEY")


def imp_home() -> Path:
    """Where models, packed weights and stored responses live: IMP_HOME, else `imp` in the user's cache folder."""
    if home := environment("IMP_HOME"):
        return Path(home).expanduser()
    cache = environment("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "imp"
