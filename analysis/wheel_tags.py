"""Whether wheels are called after the oldest userland that loads them: python analysis/wheel_tags.py WHEEL ...

auditwheel says what the symbols ask for; that must be the wheel's own tag, and manylinux_2_28 at the newest. With
--userland the libraries of this machine's wheels are also loaded and called in Debian 11's (glibc 2.31, Python 3.9),
the oldest one that Debian's archive still has, unpacked by apt-get and dpkg under build/userland.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / "build" / "userland"
NEWEST = 28
SUITE, PYTHON, GLIBC = "bullseye", "3.9", "2.31"
DEBS = (
    "libc6", "libgcc-s1", "libcrypt1", "zlib1g", "libexpat1", "libffi7", f"python{PYTHON}-minimal",
    f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib",
)  # fmt: skip
ASK = """
import ctypes, os, sys
version = ctypes.CDLL(None).gnu_get_libc_version
version.restype = ctypes.c_char_p
for path in sys.argv[1:]:
    library = ctypes.CDLL(path)
    name = {"engine": "cpu"}.get(kind := os.path.basename(path)[3:].partition("-")[0], kind)
    print(version().decode(), os.path.basename(path), getattr(library, f"imp_{name}_n_fields")() > 0)
"""


def problem(wheel: Path) -> str:
    """What is wrong with the name of a wheel; empty if nothing is."""
    told = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=True
    ).stdout
    print(f"{wheel.name}: {' '.join(told.split())}")
    return fault(wheel.stem.rpartition("-")[2], told)


def fault(tag: str, told: str) -> str:
    """`tag`: the wheel's own. `told`: what auditwheel says."""
    found = re.search(r'platform\s+tag:\s+"(manylinux_2_(\d+)_\w+)"', told)
    if found is None:
        return "auditwheel knows no manylinux tag for it"
    if int(found[2]) > NEWEST:
        return f"it needs glibc 2.{found[2]}, and 2.{NEWEST} is promised"
    own = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", tag)
    if own is None or int(own[1]) < int(found[2]) or not found[1].endswith(own[2]):
        return f"its own tag {tag} promises more than {found[1]}"
    return ""


def userland() -> list[str]:
    """A command that runs the old Python in its own libraries; apt's own state stays as it is."""
    system, debs, state = HOME / "system", HOME / "debs", HOME / "apt"
    if not (system / "usr" / "bin" / f"python{PYTHON}").exists():
        for folder in (system, debs, state / "lists" / "partial", state / "cache" / "archives" / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        sources = state / "sources.list"
        usual = Path("/etc/apt/sources.list.d/debian.sources").read_text()
        archive = re.findall(r"^URIs: (\S+)", usual, re.MULTILINE)[0]
        sources.write_text(f"deb {archive} {SUITE} main\n")
        settings = [f"Dir::Etc::SourceList={sources}", "Dir::Etc::SourceParts=/dev/null"]
        settings += [f"Dir::State::Lists={state / 'lists'}", f"Dir::Cache={state / 'cache'}", "APT::Sandbox::User="]
        apart = [part for setting in settings for part in ("-o", setting)]
        subprocess.run(["apt-get", *apart, "update", "-qq"], check=True)
        subprocess.run(["apt-get", *apart, "download", *DEBS], cwd=debs, check=True)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(deb), str(system)], check=True)
    folders = [system / "lib" / "x86_64-linux-gnu", system / "usr" / "lib" / "x86_64-linux-gnu"]
    loader = folders[0] / f"ld-{GLIBC}.so"
    program = system / "usr" / "bin" / f"python{PYTHON}"
    return [
        "env",
        f"PYTHONHOME={system / 'usr'}",
        str(loader),
        "--library-path",
        ":".join(map(str, folders)),
        str(program),
    ]


def loaded(wheel: Path) -> str:
    """What went wrong when its libraries were called in the old userland; empty if nothing did."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if name.endswith(".so")]
        libraries = [packed.extract(name, folder) for name in names]
        told = subprocess.run([*userland(), "-c", ASK, *libraries], capture_output=True, text=True, check=False)
    print(told.stdout, end="")
    fine = [line.split() for line in told.stdout.splitlines()]
    is_fine = len(fine) == len(names) > 0 and all(line[0] == GLIBC and line[2] == "True" for line in fine)
    return "" if told.returncode == 0 and is_fine else f"in glibc {GLIBC}: {told.stderr[-500:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--userland", action="store_true", help="load the libraries in an old one, too")
    asked = parser.parse_args()
    problems = [(wheel, problem(wheel)) for wheel in asked.wheels]
    if asked.userland:
        own = [wheel for wheel in asked.wheels if wheel.stem.endswith(platform.machine())]
        problems += [(wheel, loaded(wheel)) for wheel in own]
    for wheel, text in problems:
        if text:
            print(f"{wheel.name}: {text}", file=sys.stderr)
    return any(text for _, text in problems)


if __name__ == "__main__":
    sys.exit(main())
