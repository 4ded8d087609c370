"""Makes the cpu backend."""

from __future__ import annotations

from collections.abc import Callable

from imp_server.backends.base import Backend
from imp_server.backends.cpu.lowering import matrix_names, refuse_what_we_lack
from imp_server.backends.cpu.pack_files import pack_folder
from imp_server.backends.cpu.packing import packed_shape
from imp_server.backends.options import BackendOptions
from imp_server.models.source import ModelSource
from imp_server.native import library_path


def is_usable() -> bool:
    return library_path("engine") is not None


def check(source: ModelSource) -> None:
    """Raises UnsupportedModel for parts or types of tensors that the native forward lacks."""
    refuse_what_we_lack(source.architecture)
    if source.header.format == "gguf":  # of a checkpoint each scheme has a layout, and looking would unpack it
        for name in matrix_names(source.architecture):
            raw = source.raw(name)
            packed_shape(raw.type.name, raw.shape)


def make(source: ModelSource, options: BackendOptions, on_progress: Callable[[float], None] | None) -> Backend:
    from imp_server.backends.cpu.backend import CpuBackend

    cpu = options.cpu
    folder = pack_folder(cpu.pack_cache_path)
    return CpuBackend(
        source,
        n_threads=cpu.threads,
        isa=cpu.isa or None,
        quantize=cpu.quantize,
        pack_folder=folder if cpu.pack_cache else None,
        spin_us=cpu.spin_us,
        huge_pages=cpu.huge_pages,
        with_head_plane=cpu.head_plane,
        on_progress=on_progress,
    )
