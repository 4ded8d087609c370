"""Compile kernels/cpu into shared libraries beside the package, and carry the data folders in the wheel.

One library per instruction set, loaded by ctypes. Runs as hatchling's build hook (wheel, editable install) and by hand:

    python build_native.py                       what this machine runs, beside the package
    python build_native.py --commands            and build/compile_commands.json, for editors and clang-tidy
    python build_native.py --sanitize --into D   under AddressSanitizer and UBSan, into folder D (`make asan`)

CXX names the compiler, arguments included. With IMP_MACHINE=aarch64 and a compiler for it, wheels for another machine
are made (`make wheels` does both with zig, which knows old userlands, too). Without a C++ compiler it stops and says
what to install; with IMP_NO_NATIVE=1 an installation goes on without native code: models run slowly, on torch alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand, outside a build
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "kernels" / "cpu"
TARGET = ROOT / "imp" / "imp_server" / "_native"
DATA = ("spec", "kernels", "conformance")
"""Folders that the wheel carries beside the code (imp_server/resources.py finds them)."""
COMMON = ["-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-pthread"]
SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
NO_COMPILER = (
    "There is no C++ compiler, and imp's kernels need one. Install it (Debian, Ubuntu: apt install g++; Fedora: dnf "
    "install gcc-c++; macOS: xcode-select --install) or name yours in CXX, then do this again."
)
QUIET = ["-Wno-unused-function", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
VARIANTS = {
    "x86_64": {
        "portable": ["-march=x86-64"],
        "avx2": ["-march=x86-64-v3"],
        "avxvnni": ["-march=x86-64-v3", "-mavxvnni"],
        "avx512vnni": ["-march=x86-64-v4", "-mavx512vnni"],
    },
    "aarch64": {
        "portable": ["-march=armv8-a"],
        "dotprod": ["-march=armv8.2-a+dotprod"],
        "i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
    },
}
"""By machine; imp_server/native.py chooses among them."""
LIKE = {"avxvnni": "avx2", "i8mm": "dotprod"}
"""Variants that differ from another in the dot products alone: what computes none is compiled once for both."""
DOT_SOURCES = ("tiles_", "head_plane", "api_probes")
"""How the names of units begin that compute some."""
MACHINES = {"arm64": "aarch64", "AMD64": "x86_64"}
"""What other systems call them."""


class Build(NamedTuple):  # not a dataclass: hatchling runs this file without making a module of it
    """One compiler, what it builds for, and where that goes."""

    compiler: tuple[str, ...]
    machine: str = platform.machine()
    flags: tuple[str, ...] = ()
    into: Path = TARGET

    @property
    def objects(self) -> Path:
        """Objects of other compilers and flags lie elsewhere, or they would pass for fresh ones."""
        if self.is_usual:
            return ROOT / "build" / "native"
        made_by = hashlib.sha256(repr((self.compiler, self.machine, self.flags)).encode()).hexdigest()[:12]
        return ROOT / "build" / f"native-{made_by}"

    @property
    def is_usual(self) -> bool:
        return self.machine == platform.machine() and not self.flags and not os.environ.get("CXX")

    def variants(self, library: str) -> dict[str, list[str]]:
        """Instruction-set variants of a library; one that holds a file `portable-only` has a single build."""
        known = VARIANTS.get(MACHINES.get(self.machine, self.machine), {"portable": []})
        if (SOURCES / library / "portable-only").exists():
            return {"portable": known["portable"]}
        return known

    def object_path(self, library: str, isa: str, unit: Path) -> Path:
        isa = isa if unit.stem.startswith(DOT_SOURCES) else LIKE.get(isa, isa)
        return self.objects / f"{library}-{isa}" / f"{unit.stem}.o"

    def command(self, isa_flags: list[str], unit: Path, output: Path) -> list[str]:
        spelled = as_zig_has_it(isa_flags) if "zig" in " ".join(self.compiler) else isa_flags
        flags = [*COMMON, *QUIET, *spelled, *self.flags, "-MMD", "-MF", str(output.with_suffix(".d"))]
        return [*self.compiler, *flags, f"-I{SOURCES}", "-c", str(unit), "-o", str(output)]


def as_zig_has_it(isa_flags: list[str]) -> list[str]:
    """-march=x86-64-v4 -mavx512vnni -> -march=x86_64_v4+avx512vnni"""
    if not isa_flags:
        return []
    march, *more = isa_flags
    level = march.removeprefix("-march=").replace("-", "_")
    if level.startswith("armv8"):  # a baseline that every machine has, and the features above it
        level = "+".join(["generic", *level.split("+")[1:]])
    return [f"-march={level}" + "".join(flag.replace("-m", "+", 1) for flag in more)]


def find_build(into: Path | None = None, sanitize: bool = False) -> Build | None:
    """What the environment asks for (CXX, IMP_MACHINE); None if there is no compiler."""
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not found:
        return None
    machine = os.environ.get("IMP_MACHINE") or platform.machine()
    build = Build(tuple(shlex.split(found)), machine, tuple(SANITIZE) if sanitize else ())
    foreign = build.objects / "_native" if os.environ.get("IMP_MACHINE") else TARGET
    return Build(build.compiler, build.machine, build.flags, into or foreign)


def libraries() -> dict[str, list[Path]]:
    """Library stem -> its translation units. A folder below kernels/cpu is one library; loose files are none."""
    folders = sorted(d for d in SOURCES.iterdir() if d.is_dir()) if SOURCES.is_dir() else []
    return {d.name: sorted(d.glob("*.cpp")) for d in folders if any(d.glob("*.cpp"))}


def compile_unit(build: Build, library: str, isa: str, isa_flags: list[str], unit: Path) -> str | None:
    """Compile one translation unit; an error text or None. An object made of the same files and flags is left alone."""
    output = build.object_path(library, isa, unit)
    made_by = shlex.join(build.command(isa_flags, unit, output))
    if output.exists() and is_recorded(output, made_of(output, made_by)):
        return None
    output.parent.mkdir(parents=True, exist_ok=True)
    record_of(output).unlink(missing_ok=True)
    began_s = time.time()
    partial = output.with_suffix(f".{os.getpid()}.o")
    done = subprocess.run(build.command(isa_flags, unit, partial), capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{unit.name} ({isa}): {done.stderr.strip()[-2000:]}"
    partial.with_suffix(".d").replace(output.with_suffix(".d"))
    partial.replace(output)
    if all(path.stat().st_mtime < began_s - 1 for path in inputs_of(output)):  # else it may have read older ones
        record_of(output).write_text(made_of(output, made_by))
    return None


def inputs_of(output: Path) -> list[Path]:
    """The files that the compiler read, by the list that it wrote."""
    return [Path(name) for name in output.with_suffix(".d").read_text().partition(":")[2].replace("\\\n", " ").split()]


def made_of(output: Path, made_by: str) -> str:
    """A digest of the command and of the content of all it reads; of the command alone where a file is gone."""
    try:
        inputs = [digest_of(path, path.stat().st_mtime_ns) for path in inputs_of(output)]
    except OSError:
        inputs = []
    return hashlib.sha256(repr((made_by, inputs)).encode()).hexdigest()


@cache
def digest_of(path: Path, _changed_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record_of(output: Path) -> Path:
    """What an object or library was made of, told when it was whole."""
    return output.with_suffix(".made-of")


def is_recorded(output: Path, made_of: str) -> bool:
    record = record_of(output)
    return record.exists() and record.read_text() == made_of


def link(build: Build, library: str, isa: str, units: list[Path]) -> str | None:
    """Link the objects of one library; an error text or None."""
    output = build.into / f"lib{library}-{isa}.so"
    objects = [build.object_path(library, isa, unit) for unit in units]
    partial = output.with_suffix(f".{os.getpid()}.tmp")
    command = [*build.compiler, "-shared", "-pthread", *build.flags, *map(str, objects), "-o"]
    linked = objects[0].with_name(f"linked-{hashlib.sha256(str(output).encode()).hexdigest()[:12]}")
    inputs = repr((command, [digest_of(path, path.stat().st_mtime_ns) for path in objects]))
    if output.exists() and is_recorded(linked, _linked(inputs, output)):
        return None
    done = subprocess.run([*command, str(partial)], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{library} ({isa}): {done.stderr.strip()[-2000:]}"
    partial.replace(output)
    record_of(linked).write_text(_linked(inputs, output))
    return None


def _linked(inputs: str, output: Path) -> str:
    return hashlib.sha256(f"{inputs} {digest_of(output, output.stat().st_mtime_ns)}".encode()).hexdigest()


def compile_all(build: Build | None, tell: Callable[[int, int], None] = lambda _done, _all: None) -> list[str]:
    """Build every library and variant; the errors. Units of all libraries are compiled side by side.

    `tell` hears how many of how many units are up to date.
    """
    if build is None:
        return [NO_COMPILER]
    build.into.mkdir(parents=True, exist_ok=True)
    kinds = [
        (lib, isa, flags, units) for lib, units in libraries().items() for isa, flags in build.variants(lib).items()
    ]
    jobs = [
        (build, library, isa, flags, unit)
        for library, isa, flags, units in kinds
        for unit in units
        if isa not in LIKE or unit.stem.startswith(DOT_SOURCES)
    ]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        compiling = [pool.submit(compile_unit, *job) for job in jobs]
        for done, _ in enumerate(as_completed(compiling), 1):
            tell(done, len(jobs))
    errors = [error for unit in compiling if (error := unit.result())]
    return errors or [error for library, isa, _, units in kinds if (error := link(build, library, isa, units))]


def write_commands(build: Build) -> Path:
    """build/compile_commands.json of the widest variant."""
    entries = [
        {"directory": str(ROOT), "file": str(unit), "arguments": build.command(flags, unit, Path(f"{unit.stem}.o"))}
        for library, units in libraries().items()
        for flags in [list(build.variants(library).values())[-1]]
        for unit in units
    ]
    path = ROOT / "build" / "compile_commands.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(entries, indent=1))
    return path


def platform_tag(built: list[Path], machine: str) -> str:
    """The oldest userland that can load these libraries, as wheels name it.

    A library that needs the system's libstdc++ is tied to machines like this one; no name for such wheels is portable.
    """
    needs = b"".join(path.read_bytes() for path in built)
    minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", needs)]
    if sys.platform != "linux" or b"GLIBCXX_" in needs or not minors:
        return f"{sys.platform}_{machine}"
    return f"manylinux_2_{max(17, *minors)}_{machine}"


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        build = find_build()
        if os.environ.get("IMP_NO_NATIVE") != "1":
            self._report(compile_all(build))
        built = sorted(build.into.glob("*.so")) if build and build.into.exists() else []
        if build and built:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(built, build.machine)}"
            inside = {str(path): f"imp_server/_native/{path.name}" for path in built}
            build_data["force_include"].update(inside if version == "standard" else {})
        if version == "standard":  # an editable install finds them in the checkout
            folders = [name for name in DATA if (ROOT / name).is_dir()]
            build_data["force_include"].update({str(ROOT / name): f"imp_server/_data/{name}" for name in folders})

    def _report(self, errors: list[str]) -> None:
        """pip shows what a build says only if it fails: whoever lacks a compiler must hear of it."""
        if errors:
            self.app.abort("\n".join([*errors, "IMP_NO_NATIVE=1 installs without kernels: slow, and on torch alone."]))


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


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile imp's kernels.")
    parser.add_argument("--into", type=Path, help="folder of the libraries; usually beside the package")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    parser.add_argument("--commands", action="store_true", help="write build/compile_commands.json, too")
    asked = parser.parse_args()
    build = find_build(asked.into and asked.into.resolve(), asked.sanitize)
    problems = compile_all(build, Counter())
    if build and asked.commands:
        print(f"wrote {write_commands(build).relative_to(ROOT)}")
    shown = build.into.relative_to(ROOT) if build and build.into.is_relative_to(ROOT) else asked.into
    print("\n".join(problems) or f"native libraries are up to date in {shown}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
