"""constraints.txt: the versions with which the tests passed last, of what pyproject.toml asks for and all below it.

python packaging/constraints.py            writes it anew from this environment
pip install -c constraints.txt imp-server  installs these
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
EXTRA = "test"


def asked() -> list[Requirement]:
    """What an installation and its tests ask for themselves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"][EXTRA])]


def below(requirement: Requirement, seen: set[str]) -> Iterator[str]:
    """`name==version` of it and of what it needs here; nothing where it isn't needed here."""
    name = canonicalize_name(requirement.name)
    extras = requirement.extras or {""}
    if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
        return
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    if name not in seen:
        seen.add(name)
        yield f"{name}=={found.version.partition('+')[0]}"
    for line in found.requires or ():
        needed = Requirement(line)
        needs_it = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
        if needs_it and canonicalize_name(needed.name) not in seen:
            needed.marker = None
            yield from below(needed, seen)


def main() -> None:
    seen: set[str] = set()
    lines = sorted(line for one in asked() for line in below(one, seen))
    FILE.write_text(
        "\n".join(["# Versions that the tests passed with: packaging/constraints.py writes them.", *lines, ""])
    )


if __name__ == "__main__":
    main()
