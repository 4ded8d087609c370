"""CUDA C++ to cubins, by NVRTC: the one function that compiles kernels, in tests and at run time.

Cubins are machine code of one architecture, never PTX: nothing is left for a driver to compile. NVRTC is found beside a
CUDA installation or in NVIDIA's wheels; no headers of the toolkit are needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from imp_server.backends.cuda.launching import KernelSource
from imp_server.core import DeviceError
from imp_server.resources import data_folder

ARCHITECTURES = (80, 86, 89, 90, 100, 120, 121)
"""That every kernel is compiled for in tests."""

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_IN_WHEELS = ("cu13/lib", "cuda_nvrtc/lib")
_COMMON = ("--std=c++17", "-fmad=false")

MEND = "pip install 'nvidia-cuda-nvrtc>=13,<14' brings NVRTC, and so does an installation of CUDA 12.8 or newer"
"""What whoever has no NVRTC must do."""


def compile_cubin(source: KernelSource, arch: int, options: Sequence[str] = (), folder: Path | None = None) -> bytes:
    """The cubin of a file of kernels/cuda for sm_`arch`. `folder`: where cubins are kept; None = nowhere.

    Raises DeviceError if there is no NVRTC, or what it said about the source.
    """
    sources = kernel_sources()
    text = sources[source.file]
    asked = (f"--gpu-architecture=sm_{arch}", *_COMMON, *source.options, *options)
    library = nvrtc()
    digest = hashlib.sha256(repr((asked, nvrtc_version(), text, sources)).encode()).hexdigest()
    kept = folder / f"{Path(source.file).stem}-sm{arch}-{digest[:32]}.cubin" if folder else None
    if kept and kept.exists():
        return kept.read_bytes()
    headers = {name: header for name, header in sources.items() if name.endswith(".h")}
    cubin = _compiled(library, source.file, text, headers, asked)
    if kept:
        _keep(kept, cubin)
    return cubin


@cache
def kernel_sources() -> dict[str, str]:
    """Name -> text of every file of kernels/cuda."""
    folder = data_folder("kernels") / "cuda"
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.suffix in {".cu", ".h"}}


@cache
def nvrtc() -> ctypes.CDLL:
    """Raises DeviceError if there is none."""
    for name in (*_wheels(), *_NAMES):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(f"CUDA kernels can't be compiled without NVRTC: {MEND}")


def _wheels() -> list[str]:
    spec = find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    return [
        str(path) for root in roots for place in _IN_WHEELS for name in _NAMES if (path := root / place / name).exists()
    ]


def nvrtc_version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc(), nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _compiled(library: ctypes.CDLL, name: str, text: str, headers: dict[str, str], options: Sequence[str]) -> bytes:
    program = ctypes.c_void_p()
    bodies = _strings(list(headers.values()))
    made = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), name.encode(), len(headers), bodies, _strings(list(headers))
    )
    _check(library, made)
    try:
        wrong = library.nvrtcCompileProgram(program, len(options), _strings(options))
        if wrong:
            said = _read(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise DeviceError(f"{name} doesn't compile ({' '.join(options)}): {said[:2000] or _error(library, wrong)}")
        return _read(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _read(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, room))
    return room.raw


def _error(library: ctypes.CDLL, code: int) -> str:
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    told: bytes = library.nvrtcGetErrorString(code)
    return told.decode()


def _check(library: ctypes.CDLL, code: int) -> None:
    if code:
        raise DeviceError(f"NVRTC: {_error(library, code)}")


def _keep(path: Path, cubin: bytes) -> None:
    """A cubin that can't be kept is compiled again the next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            partial.write(cubin)
        os.replace(partial.name, path)
    except OSError:
        return
