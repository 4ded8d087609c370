"""The kernels' tests, bit by bit, and a server's start on an emulated aarch64 (`make emulated`).

    python analysis/emulated.py [--serve MODEL] [PYTEST ARGUMENTS]

Cross-compiles the kernels, takes Python for arm64 from Debian and the packages' wheels for aarch64 from the index, and
runs them under qemu's user mode. Needs qemu-aarch64, aarch64-linux-gnu-g++, apt-get and dpkg; without them it says what
is missing and ends with 0, as a skipped test does. All it makes lies under build/aarch64. Emulated instructions prove
results, never speed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "aarch64"
COMPILER = "aarch64-linux-gnu-g++"
TOOLS = ("qemu-aarch64", COMPILER, "apt-get", "dpkg")
PYTHON = "3.11"
DEBS = (
    f"python{PYTHON}", f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib",
    "libc6", "libstdc++6", "libgcc-s1", "libssl3", "zlib1g", "libexpat1", "libffi8", "libsqlite3-0", "libbz2-1.0",
    "liblzma5", "libuuid1", "libreadline8", "libtinfo6", "libcrypt1", "libncursesw6",
)  # fmt: skip
WHEEL_PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28)] + ["manylinux2014_aarch64"]
TESTS = ("test_cpu_matmul.py", "test_cpu_head_plane.py", "test_cpu_probes.py", "test_cpu_sampling.py")
FORWARD = "tests/backends/cpu/test_forward.py"
PORT = 18093


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--serve", metavar="MODEL", help="also start a server with this model and ask it for a token")
    options, rest = parser.parse_known_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} missing (apt-get install qemu-user g++-aarch64-linux-gnu)")
        return 0
    HOME.mkdir(parents=True, exist_ok=True)
    package = compiled()
    python = emulated_python()
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, (HOME / "named", package, ROOT, packages()))))
    tests = rest or [*(f"tests/kernels/{name}" for name in TESTS), FORWARD]
    # Neither the usual options, which ask for parallel workers, nor the fixtures of servers.
    pytest = ["-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={ROOT}", "--noconftest", "-p", "no:cacheprovider"]
    failed = subprocess.run([*python, *pytest, *tests], cwd=ROOT, env=environment, check=False).returncode
    if options.serve and not failed:
        served(python, environment, options.serve)
    return failed


def compiled() -> Path:
    """A copy of the package with kernels for aarch64."""
    copy = HOME / "imp"
    shutil.copytree(ROOT / "imp", copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("_native", "__pycache__"))
    for folder in ("spec", "kernels", "conformance"):
        if not (HOME / folder).exists():
            (HOME / folder).symlink_to(ROOT / folder)
    environment = dict(os.environ, IMP_MACHINE="aarch64", CXX=COMPILER)
    into = copy / "imp_server" / "_native"
    subprocess.run([sys.executable, "build_native.py", "--into", str(into)], cwd=ROOT, env=environment, check=True)
    return copy


def emulated_python() -> list[str]:
    """A command that runs Python for aarch64; apt's own state stays as it is."""
    system, debs = HOME / "system", HOME / "debs"
    if not (system / "usr" / "bin" / f"python{PYTHON}").exists():
        debs.mkdir(exist_ok=True)
        state = HOME / "apt"
        (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        settings = ("APT::Architectures::=arm64", f"Dir::State::lists={state / 'lists'}", "APT::Sandbox::User=")
        apart = [part for setting in settings for part in ("-o", setting)]
        subprocess.run(["apt-get", *apart, "update", "-qq"], check=True)
        named = [f"{name}:arm64" for name in DEBS]
        subprocess.run(["apt-get", *apart, "download", *named], cwd=debs, check=True)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(deb), str(system)], check=True)
    # A program that the host can start by itself, since a server starts its engine by the name of its own interpreter.
    launcher = HOME / "python"
    program = system / "usr" / "bin" / f"python{PYTHON}"
    launcher.write_text(f'#!/bin/sh\nexec qemu-aarch64 -cpu max -L "{system}" "{program}" "$@"\n')
    launcher.chmod(0o755)
    (HOME / "named").mkdir(exist_ok=True)
    (HOME / "named" / "sitecustomize.py").write_text(f"import sys\n\nsys.executable = {str(launcher)!r}\n")
    return [str(launcher)]


def packages() -> Path:
    """What imp and its tests import, unpacked."""
    site, wheels = HOME / "site", HOME / "wheels"
    if not site.exists():
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = [*project["dependencies"], "gguf", "pytest", "pytest-timeout"]
        platforms = [f"--platform={name}" for name in WHEEL_PLATFORMS]
        tags = ["--python-version", PYTHON, "--implementation", "cp", "--only-binary=:all:"]
        abis = ["--abi", f"cp{PYTHON.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels)]
        subprocess.run([*download, *tags, *abis, *platforms, *wanted], check=True)
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)
    return site


def served(python: list[str], environment: dict[str, str], model: str) -> None:
    """Start a server, wait until it is ready, let it complete a few tokens; how long that takes says nothing."""
    options = ["--port", str(PORT), "--no-cpu-pack-cache", "--kv-cache-size-mib", "64", "--watchdog-s", "0"]
    command = [*python, "-m", "imp_server.cli.main", "serve", model, *options]
    server = subprocess.Popen(command, cwd=ROOT, env=environment)
    url = f"http://127.0.0.1:{PORT}"
    try:
        until = time.monotonic() + 1800
        while not _answers(f"{url}/ready"):
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit("the emulated server isn't ready")
            time.sleep(2)
        body = {"model": Path(model).stem, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        print(urllib.request.urlopen(asked, timeout=600).read().decode())
    finally:
        server.terminate()
        server.wait(120)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
