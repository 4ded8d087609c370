"""A Debian package out of a wheel, with all that it needs but Python itself.

    python packaging/debian/build.py dist/imp_server-....whl OUT [--no-deps]

The package is for this Python's version (3.11: Debian 12) and for the wheel's machine; pip fetches the dependencies for
that machine. Commands go to /usr/bin, all else to /usr/lib/imp-server, and there is a unit for systemd, which nothing
starts by itself. `--no-deps` leaves the dependencies out, for tests.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
COMMANDS = {
    "imp": "main",
    "imp-server": "serve_main",
    "imp-llama-server": "llama_server_main",
    "imp-cli": "offline_main",
}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
LAUNCHER = """#!/bin/sh
# Wherever the package lies: its modules are in ../lib/imp-server.
here=$(dirname "$(readlink -f "$0")")
PYTHONPATH="${{here%/bin}}/lib/imp-server${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec {python} -P -c 'from imp_server.cli._entry import {function}; {function}()' "$@"
"""
CONTROL = """Package: imp-server
Version: {version}
Architecture: {architecture}
Maintainer: imp <imp@localhost>
Installed-Size: {size_kib}
Depends: python3 (>= {python}), python3 (<< {after}), libc6 (>= 2.28)
Section: science
Priority: optional
Description: LLM server for your own machine
 It speaks what today's clients and agents speak from one engine, and enforces
 JSON schemas, regexes and grammars exactly. `imp serve` starts it,
 `systemctl enable --now imp` keeps it running.
"""


def facts_of(wheel: Path) -> tuple[str, str]:
    """Version and machine. Raises SystemExit for what isn't a wheel of ours for Linux."""
    found = re.fullmatch(r"imp_server-([^-]+)-py3-none-\w*linux\w*_(x86_64|aarch64)\.whl", wheel.name)
    if not found:
        raise SystemExit(f"{wheel.name} isn't a wheel of imp-server for Linux")
    return found[1], found[2]


def install(wheel: Path, machine: str, into: Path, *, with_deps: bool) -> None:
    """Raises CalledProcessError where pip can't."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--target", str(into)]
    command += ["--no-compile", "--only-binary", ":all:"]
    for tag in ("manylinux_2_28", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "linux"):
        command += ["--platform", f"{tag}_{machine}"]
    subprocess.run([*command, *([] if with_deps else ["--no-deps", "--no-index"]), str(wheel)], check=True)
    shutil.rmtree(into / "bin", ignore_errors=True)  # they name this machine's Python


def fill(root: Path) -> None:
    """Commands, the unit and what Debian wants to be told, beside the modules."""
    programs = root / "usr" / "bin"
    programs.mkdir(parents=True)
    for name, function in COMMANDS.items():
        (programs / name).write_text(LAUNCHER.format(python="/usr/bin/python3", function=function))
        (programs / name).chmod(0o755)
    units, told = root / "usr/lib/systemd/system", root / "usr/share/doc/imp-server"
    units.mkdir(parents=True), told.mkdir(parents=True)
    unit = (HERE / "packaging/systemd/imp.service").read_text()
    (units / "imp.service").write_text(unit.replace("/usr/bin/env imp", "/usr/bin/imp"))
    shutil.copy(HERE / "LICENSE", told / "copyright")
    with gzip.GzipFile(told / "changelog.gz", "wb", mtime=0) as changes:
        changes.write((HERE / "CHANGELOG.md").read_bytes())


def control(version: str, machine: str, size_kib: int) -> str:
    major, minor = sys.version_info[:2]
    return CONTROL.format(
        version=version, architecture=MACHINES[machine], size_kib=size_kib,
        python=f"{major}.{minor}", after=f"{major}.{minor + 1}",
    )  # fmt: skip


def build(wheel: Path, out: Path, *, with_deps: bool) -> Path:
    """The package's path."""
    version, machine = facts_of(wheel)
    out.mkdir(parents=True, exist_ok=True)
    package = out / f"imp-server_{version}_{MACHINES[machine]}.deb"
    with tempfile.TemporaryDirectory() as made:
        root = Path(made) / "root"
        install(wheel, machine, root / "usr/lib/imp-server", with_deps=with_deps)
        fill(root)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN" / "control").write_text(control(version, machine, size // 1024))
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", str(root)], check=True)
        epoch = os.environ.get("SOURCE_DATE_EPOCH", str(int((HERE / "CHANGELOG.md").stat().st_mtime)))
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(package)]
        subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, check=True, stdout=subprocess.DEVNULL)
    return package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--no-deps", action="store_true")
    options = parser.parse_args()
    package = build(options.wheel, options.out, with_deps=not options.no_deps)
    print(f"{package} ({package.stat().st_size / 2**20:.0f} MiB)")


if __name__ == "__main__":
    main()
