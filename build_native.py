"""Compile kernels/cpu into shared libraries beside the package, and carry the data folders in the wheel.

One library per instruction set, loaded by ctypes.

Runs as hatchling's build hook (wheel, editable install) and by hand: `python build_native.py`.
Without a C++ compiler it stops and says what to install; with IMP_NO_NATIVE=1 an installation goes on without
native code, and models run slowly, on torch alone.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand, outside a build
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "kernels" / "cpu"
TARGET = ROOT / "imp" / "imp_server" / "_native"
OBJECTS = ROOT / "build" / "native"
DATA = ("spec", "kernels", "conformance")
"""Folders that the wheel carries beside the code (imp_server/resources.py finds them)."""
COMMON = ["-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-pthread"]
NO_COMPILER = (
    "There is no C++ compiler, and imp's kernels need one. Install it (Debian, Ubuntu: apt install g++; Fedora: dnf "
    "install gcc-c++; macOS: xcode-select --install) or name yours in CXX, then do this again."
)
QUIET = ["-Wno-unused-function", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
X86_VARIANTS = {
    "portable": ["-march=x86-64"],
    "avx2": ["-march=x86-64-v3"],
    "avx512vnni": ["-march=x86-64-v4", "-mavx512vnni"],
}


def libraries() -> dict[str, list[Path]]:
    """Library stem -> its translation units. A folder below kernels/cpu is one library; loose files are none."""
    folders = sorted(d for d in SOURCES.iterdir() if d.is_dir()) if SOURCES.is_dir() else []
    return {d.name: sorted(d.glob("*.cpp")) for d in folders if any(d.glob("*.cpp"))}


def variants(name: str) -> dict[str, list[str]]:
    """Instruction-set variants of a library; one that holds a file `portable-only` has a single build."""
    if platform.machine() != "x86_64" or (SOURCES / name / "portable-only").exists():
        return {"portable": X86_VARIANTS["portable"] if platform.machine() == "x86_64" else []}
    return X86_VARIANTS


def compile_unit(compiler: str, name: str, isa: str, flags: list[str], unit: Path) -> str | None:
    """Compile one translation unit; an error text or None. An object newer than all it was made from is left alone."""
    output = object_path(name, isa, unit)
    if output.exists() and is_fresh(output):
        return None
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(f".{os.getpid()}.o")
    found = ["-MMD", "-MF", str(partial.with_suffix(".d"))]
    command = [compiler, *COMMON, *QUIET, *flags, *found, f"-I{SOURCES}", "-c", str(unit), "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{unit.name} ({isa}): {done.stderr.strip()[-2000:]}"
    partial.with_suffix(".d").replace(output.with_suffix(".d"))
    partial.replace(output)
    return None


def object_path(name: str, isa: str, unit: Path) -> Path:
    return OBJECTS / f"{name}-{isa}" / f"{unit.stem}.o"


def is_fresh(output: Path) -> bool:
    """Newer than this file and than every file that the compiler read, by the list that it wrote."""
    try:
        listed = output.with_suffix(".d").read_text().partition(":")[2].replace("\\\n", " ").split()
        inputs = [Path(__file__), *map(Path, listed)]
        return output.stat().st_mtime >= max(path.stat().st_mtime for path in inputs)
    except OSError:
        return False


def link(compiler: str, name: str, isa: str, units: list[Path]) -> str | None:
    """Link the objects of one library; an error text or None."""
    output = TARGET / f"lib{name}-{isa}.so"
    objects = [object_path(name, isa, unit) for unit in units]
    if output.exists() and output.stat().st_mtime >= max(path.stat().st_mtime for path in objects):
        return None
    partial = output.with_suffix(f".{os.getpid()}.tmp")
    command = [compiler, "-shared", "-pthread", *map(str, objects), "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{name} ({isa}): {done.stderr.strip()[-2000:]}"
    partial.replace(output)
    return None


def build(tell: Callable[[int, int], None] = lambda _done, _all: None) -> list[str]:
    """Build every library and variant; the errors. Units of all libraries are compiled side by side.

    `tell` hears how many of how many units are up to date.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return [NO_COMPILER]
    TARGET.mkdir(exist_ok=True)
    kinds = [(name, isa, flags, units) for name, units in libraries().items() for isa, flags in variants(name).items()]
    jobs = [(compiler, name, isa, flags, unit) for name, isa, flags, units in kinds for unit in units]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        compiling = [pool.submit(compile_unit, *job) for job in jobs]
        for done, _ in enumerate(as_completed(compiling), 1):
            tell(done, len(jobs))
    errors = [error for unit in compiling if (error := unit.result())]
    return errors or [error for name, isa, _, units in kinds if (error := link(compiler, name, isa, units))]


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._report(build())
        if self.target_name != "wheel":
            return
        built = sorted(TARGET.glob("*.so")) if TARGET.exists() else []
        if built:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sys.platform}_{platform.machine()}"
            build_data["artifacts"] += [str(p.relative_to(ROOT)) for p in built]
        if version == "standard":  # an editable install finds them in the checkout
            folders = [name for name in DATA if (ROOT / name).is_dir()]
            build_data["force_include"].update({str(ROOT / name): f"imp_server/_data/{name}" for name in folders})

    def _report(self, errors: list[str]) -> None:
        """pip shows what a build says only if it fails: whoever lacks a compiler must hear of it."""
        if errors and os.environ.get("IMP_NO_NATIVE") != "1":
            self.app.abort("\n".join([*errors, "IMP_NO_NATIVE=1 installs without kernels: slow, and on torch alone."]))
        for error in errors:
            self.app.display_warning(error)


class Counter:
    """Tells a person who waits how far it is; silent when all is done within a second."""

    def __init__(self) -> None:
        self.began = self.told = time.monotonic()
        self.live = sys.stdout.isatty()

    def __call__(self, done: int, units: int) -> None:
        now = time.monotonic()
        if now - self.told < (1 if self.live else 15) and not (done == units and self.told > self.began):
            return
        self.told = now
        start, end = ("\r", "\n" if done == units else "") if self.live else ("", "\n")
        print(f"{start}compiling the kernels: {done} of {units}", end=end, flush=True)


if __name__ == "__main__":
    problems = build(Counter())
    print("\n".join(problems) or f"native libraries are up to date in {TARGET.relative_to(ROOT)}")
    sys.exit(bool(problems))
