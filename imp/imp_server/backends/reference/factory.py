"""Makes the reference backend; torch is imported only when it is made."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from imp_server.backends.base import Backend
from imp_server.backends.options import BackendOptions
from imp_server.models.rotation import frequencies
from imp_server.models.source import ModelSource


def is_usable() -> bool:
    return find_spec("torch") is not None


def check(source: ModelSource) -> None:
    """Raises UnsupportedModel for positions that can't be made; the rest of a description is executed as it is."""
    for rope in source.architecture.ropes():
        frequencies(rope)


def make(source: ModelSource, options: BackendOptions, on_progress: Callable[[float], None] | None) -> Backend:
    from imp_server.backends.reference.backend import ReferenceBackend

    threads = options.cpu.threads or 1
    return ReferenceBackend(source, threads=threads, on_progress=on_progress)
