"""Makes a backend by name. Modules are imported on demand: only `reference` and `cuda` import torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

from imp_server.backends.base import Backend
from imp_server.backends.options import BackendOptions
from imp_server.core import ConfigError, UnsupportedModel
from imp_server.models.source import ModelSource
from imp_server.native import MEND

log = logging.getLogger(__name__)

Progress = Callable[[float], None]
NEEDS = {
    "reference": "'torch>=2.11,<2.14'",
    "cuda": "'torch>=2.11,<2.14' 'cupy-cuda13x>=14,<15' 'nvidia-cuda-nvrtc>=13,<14'",
}
"""What `pip install` needs to hear: the extra of that name in pyproject.toml. Extras can't be told instead, as imp is
on no package index."""


class _Module(Protocol):
    """What backends/NAME/factory.py offers."""

    def make(self, source: ModelSource, options: BackendOptions, on_progress: Progress | None) -> Backend: ...

    def check(self, source: ModelSource) -> None:
        """Raises UnsupportedModel for a model that it can't run; reads no weights."""
        ...

    def is_usable(self) -> bool:
        """The machine and the installation have what it takes; cheap, imports nothing heavy."""
        ...


def make_backend(
    name: str, source: ModelSource, options: BackendOptions, on_progress: Progress | None = None
) -> Backend:
    """`name`: auto | cpu | reference | cuda.

    auto falls back to reference for a model that the chosen backend can't run. Raises ConfigError if the backend
    isn't installed, UnsupportedModel if it can't run this model.
    """
    if name == "auto":
        return _make_best(choose(name), source, options, on_progress)
    module = _module(name)
    if module is None:
        raise ConfigError(f"this imp has no backend {name!r}: use --backend auto")
    if not module.is_usable():
        hint = f"; it needs: pip install {NEEDS[name]}" if name in NEEDS else ""
        raise ConfigError(f"the backend {name!r} isn't available here{hint}")
    return module.make(source, options, on_progress)


def _make_best(name: str, source: ModelSource, options: BackendOptions, on_progress: Progress | None) -> Backend:
    reference = _module("reference")
    spare = reference is not None and reference.is_usable()
    if name == "reference" and not spare:
        raise ConfigError(
            f"no model can run here, as the native library isn't built: {MEND}; "
            f"without one, a slow reference backend runs on torch: pip install {NEEDS['reference']}"
        )
    if name == "reference":
        log.warning("the native library isn't built: serving on the slow reference backend; %s", MEND)
    try:
        return make_backend(name, source, options, on_progress)
    except UnsupportedModel as error:
        if name == "reference" or not spare:
            raise
        log.warning("%s: serving on the slow reference backend", error.message)
        return make_backend("reference", source, options, on_progress)


def refuse_unrunnable(source: ModelSource) -> None:
    """Raises UnsupportedModel for a model that `make_backend("auto", ...)` would refuse."""
    name = choose("auto")
    module, reference = _module(name), _module("reference")
    try:
        if module is not None:
            module.check(source)
    except UnsupportedModel:
        if name == "reference" or reference is None or not reference.is_usable():
            raise
        reference.check(source)


def exists(name: str) -> bool:
    """This imp has such a backend, usable here or not."""
    return _module(name) is not None


def choose(name: str) -> str:
    """auto = cpu if it is built, else reference. Not cuda, which nobody has run on a card yet: it must be asked for."""
    if name != "auto":
        return name
    module = _module("cpu")
    return "cpu" if module is not None and module.is_usable() else "reference"


def _module(name: str) -> _Module | None:
    path = f"{__name__}.{name}"
    try:
        if find_spec(path) is None or find_spec(f"{path}.factory") is None:
            return None
    except ModuleNotFoundError:
        return None
    return cast(_Module, import_module(f"{path}.factory"))
