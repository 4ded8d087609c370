"""Makes the cpu backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from imp_server.backends.base import Backend
from imp_server.backends.cpu.lowering import matrix_names, refuse_what_we_lack
from imp_server.backends.cpu.pack_files import pack_folder
from imp_server.backends.cpu.packing import packed_shape
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


def make(source: ModelSource, options: dict[str, Any], on_progress: Callable[[float], None] | None) -> Backend:
    """`options["cpu"]`: the config section `cpu` as a dict."""
    from imp_server.backends.cpu.backend import CpuBackend

    cpu = options.get("cpu", {})
    folder = pack_folder(cpu.get("pack_cache_path", ""))
    return CpuBackend(
        source,
        n_threads=int(cpu.get("threads", 0)),
        isa=cpu.get("isa") or None,
        quantize=cpu.get("quantize", "none"),
        pack_folder=folder if cpu.get("pack_cache", True) else None,
        spin_us=int(cpu.get("spin_us", 75)),
        huge_pages=bool(cpu.get("huge_pages", True)),
        with_head_plane=bool(cpu.get("head_plane", True)),
        on_progress=on_progress,
    )
