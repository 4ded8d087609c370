"""Makes the cpu backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from imp_server.backends.base import Backend
from imp_server.backends.cpu.pack_files import pack_folder
from imp_server.models.source import ModelSource
from imp_server.native import library_path


def is_usable() -> bool:
    return library_path("engine") is not None


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
