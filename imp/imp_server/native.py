"""Loads the compiled libraries of kernels/cpu through ctypes, in the best instruction set this CPU has."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from imp_server.config import environment
from imp_server.core import ConfigError, UnsupportedModel
from imp_server.resources import native_folder

ISAS = ("avx512vnni", "avxvnni", "avx2", "i8mm", "dotprod", "portable")
"""Best first. Names of the variants that build_native.py makes."""

MEND = "install a C++ compiler (g++ or clang++) and install imp again (in a checkout: make native)"
"""What whoever has no native library must do."""

_AVX2 = {"avx2", "fma", "f16c", "bmi2"}
_NEEDS = {
    "x86_64": {
        "avx512vnni": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"},
        "avxvnni": _AVX2 | {"avx_vnni"},
        "avx2": _AVX2,
        "portable": set[str](),
    },
    "aarch64": {"i8mm": {"asimddp", "i8mm"}, "dotprod": {"asimddp"}, "portable": set[str]()},
}

_AT_HWCAP, _AT_HWCAP2 = 16, 26
_HWCAP_ASIMDDP, _HWCAP2_I8MM = 20, 13
"""Bits of the kernel's table for aarch64."""


@cache
def cpu_features() -> frozenset[str]:
    """Feature flags of this CPU as Linux names them; empty where no one tells."""
    if sys.platform == "darwin":
        return _features_of_macos()
    if _machine() == "aarch64":
        return _features_of_arm()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def _machine() -> str:
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())


def _features_of_arm() -> frozenset[str]:
    """What Linux tells each process, under emulation, too; /proc/cpuinfo is the host's there."""
    try:
        tell = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return frozenset()
    tell.restype, tell.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    capabilities, more = tell(_AT_HWCAP), tell(_AT_HWCAP2)
    found = {"asimddp"} if capabilities >> _HWCAP_ASIMDDP & 1 else set[str]()
    return frozenset(found | ({"i8mm"} if more >> _HWCAP2_I8MM & 1 else set[str]()))


def _features_of_macos() -> frozenset[str]:
    """Untested: no such machine was at hand."""
    named = {"hw.optional.arm.FEAT_DotProd": "asimddp", "hw.optional.arm.FEAT_I8MM": "i8mm"}
    system = ctypes.CDLL(None)
    found = set()
    for name, feature in named.items():
        value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        wrong = system.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
        if not wrong and value.value:
            found.add(feature)
    return frozenset(found)


def usable_isas() -> tuple[str, ...]:
    """Instruction sets this CPU can run, best first."""
    needs = _NEEDS.get(_machine(), {"portable": set[str]()})
    return tuple(isa for isa in ISAS if isa in needs and needs[isa] <= cpu_features())


def library_path(name: str, isa: str | None = None) -> Path | None:
    """The file of library `name`; None if it isn't built. `isa` None: IMP_CPU_ISA, else the best usable one.

    Raises ConfigError if the instruction set asked for is unknown or this CPU lacks it.
    """
    wanted = isa or environment("IMP_CPU_ISA")
    usable = usable_isas()
    if wanted and wanted not in usable:
        raise ConfigError(f"IMP_CPU_ISA={wanted}: this CPU can run {', '.join(usable)}")
    for candidate in (wanted,) if wanted else usable:
        path = native_folder() / f"lib{name}-{candidate}.so"
        if path.exists():
            return path
    fallback = native_folder() / f"lib{name}-portable.so"
    return fallback if fallback.exists() and not _has_vectors(name) else None


def _has_vectors(name: str) -> bool:
    """Whether the library is one that is built for several instruction sets."""
    return any((native_folder() / f"lib{name}-{isa}.so").exists() for isa in ISAS if isa != "portable")


@cache
def load_library(name: str, isa: str | None = None) -> ctypes.CDLL | None:
    """The loaded library or None if it isn't built. Calls release the GIL."""
    path = library_path(name, isa)
    return ctypes.CDLL(str(path)) if path else None


def isa_in_use(name: str, isa: str | None = None) -> str:
    """The instruction set of the library that `load_library` gives; "none" if it isn't built."""
    path = library_path(name, isa)
    return path.stem.rpartition("-")[2] if path else "none"


def library_digest(name: str, isa: str | None = None) -> str:
    """Names the code in use: its instruction set and a digest of the library, so no change can go unnoticed."""
    path = library_path(name, isa)
    if path is None:
        return "none"
    return f"{isa_in_use(name, isa)} {hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()}"


# --- whether a library is of this version -------------------------------------------------------


def shared_fields(structs: Iterable[type[ctypes.Structure]]) -> dict[str, int]:
    """`Struct.field` -> offset, and `Struct` -> size, as Python has them."""
    found: dict[str, int] = {}
    for struct in structs:
        found[struct.__name__] = ctypes.sizeof(struct)
        found |= {f"{struct.__name__}.{field[0]}": getattr(struct, field[0]).offset for field in struct._fields_}
    return found


def compiled_fields(loaded: ctypes.CDLL, prefix: str) -> dict[str, int]:
    """The same as `PREFIX_field` of the library tells; empty for one from before it could."""
    try:
        field, n_fields = getattr(loaded, f"{prefix}_field"), getattr(loaded, f"{prefix}_n_fields")
    except AttributeError:
        return {}
    field.argtypes = [ctypes.c_int32, ctypes.POINTER(ctypes.c_int64)]
    field.restype = ctypes.c_char_p
    offset = ctypes.c_int64()
    found = {}
    for index in range(n_fields()):
        name = field(index, ctypes.byref(offset)).decode()
        found[name] = offset.value
    return found


def refuse_difference(library: str, here: dict[str, int], there: dict[str, int]) -> None:
    """Raises UnsupportedModel naming the first thing that isn't in the library as Python thinks."""
    wrong = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    if wrong:
        raise UnsupportedModel(
            f"the native {library} library is from another version of imp ({wrong[0]} differs): run 'make native' again"
        )
