"""Finds the data folders (spec, kernels, conformance) in a checkout or in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from imp_server.core import ConfigError

_PACKAGE = Path(__file__).resolve().parent
_NAMES = ("spec", "kernels", "conformance")


def data_folder(name: str) -> Path:
    """The folder `name` (spec | kernels | conformance). Raises ConfigError if the installation lacks it."""
    if name not in _NAMES:
        raise ValueError(name)
    for root in (_PACKAGE / "_data", _PACKAGE.parent.parent):
        folder = root / name
        if folder.is_dir():
            return folder
    raise ConfigError(f"the installation lacks its folder '{name}'; reinstall imp")


def native_folder() -> Path:
    """Where the compiled libraries are (may not exist)."""
    return _PACKAGE / "_native"
