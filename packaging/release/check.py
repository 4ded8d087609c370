"""Whether a folder holds what a release is made of, before anybody gets it.

    python packaging/release/check.py dist [--tag v0.1.0]

One sdist with the documentation and the tests, and one wheel per machine, each with the kernels of that machine, and no
other file. All are of the version in the tag, which is also the package's own.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
MACHINES = {"x86_64": 62, "aarch64": 183}
"""The machine in an ELF header, e_machine."""
NEWEST_GLIBC = 28
"""2.N: the newest that a wheel may ask for."""
OF_A_WHEEL = (
    "imp_server/cli/main.py",
    "imp_server/ui/static/main.js",
    "imp_server/_data/spec/openai-chat.yaml",
    "imp_server/_data/kernels/cpu/engine/plan.h",
    "imp_server/_data/conformance/cases/openai-chat.yaml",
)
OF_AN_SDIST = (
    "pyproject.toml", "build_native.py", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile",
    "mkdocs.yml", "Dockerfile", "docs/index.md", "docs/config.md", "docs/images/light.png", "tests/conftest.py",
    "tests/config/test_every_knob.py", "spec/openai-chat.yaml", "kernels/cpu/engine/plan.h", "analysis/peers.py",
    "conformance/cases/openai-chat.yaml", "imp/imp_server/cli/main.py", "packaging/container/entrypoint.sh",
)  # fmt: skip
NEVER = re.compile(r"(^|/)(__pycache__|\.venv|build|dist|_native)/|\.(pyc|gguf|safetensors)$")


def own_version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (HERE / "imp/imp_server/__init__.py").read_text(), re.M)
    assert found, "the package has no version"
    return found[1]


def faults_of_wheel(path: Path, machine: str) -> Iterator[str]:
    userland = re.search(rf"-manylinux_2_(\d+)_{machine}\.whl$", path.name)
    if userland is None or int(userland[1]) > NEWEST_GLIBC:
        yield f"{path.name}: not for glibc 2.{NEWEST_GLIBC} and older of {machine}"
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        yield from (f"{path.name}: {name} is missing" for name in OF_A_WHEEL if name not in names)
        kernels = [name for name in names if name.startswith("imp_server/_native/") and name.endswith(".so")]
        if not any("engine" in name for name in kernels) or not any("grammar" in name for name in kernels):
            yield f"{path.name}: kernels are missing"
        for name in kernels:
            head = wheel.read(name)[:20]
            if head[:4] != b"\x7fELF" or int.from_bytes(head[18:20], "little") != MACHINES[machine]:
                yield f"{path.name}: {name} is not for {machine}"


def faults_of_sdist(path: Path, version: str) -> Iterator[str]:
    top = f"imp_server-{version}/"
    with tarfile.open(path) as archive:
        names = [member.name.removeprefix(top) for member in archive.getmembers()]
    yield from (f"{path.name}: {name} is missing" for name in OF_AN_SDIST if name not in names)
    yield from (f"{path.name}: {name} doesn't belong there" for name in names if NEVER.search(name))


def faults(folder: Path, tag: str) -> list[str]:
    """In words; nothing if all is there."""
    version = own_version()
    found = [] if tag in ("", f"v{version}") else [f"the tag is {tag}, and the package is {version}"]
    expected = {f"imp_server-{version}.tar.gz"}
    for machine in MACHINES:
        wheels = list(folder.glob(f"imp_server-{version}-py3-none-*_{machine}.whl"))
        expected |= {path.name for path in wheels}
        if len(wheels) != 1:
            found.append(f"{len(wheels)} wheels of {version} for {machine} instead of one")
        found += [fault for path in wheels for fault in faults_of_wheel(path, machine)]
    sdist = folder / f"imp_server-{version}.tar.gz"
    found += list(faults_of_sdist(sdist, version)) if sdist.exists() else [f"{sdist.name} is missing"]
    return found + [f"{path.name} doesn't belong there" for path in folder.iterdir() if path.name not in expected]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tag", default="", help="the release's tag, if there is one")
    options = parser.parse_args()
    found = faults(options.folder, options.tag)
    print("\n".join(found) if found else f"{options.folder}: complete")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
