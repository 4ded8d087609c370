"""Every knob, typed, in sections; the only reader of the environment."""

from __future__ import annotations

import os


def environment(name: str) -> str:
    """An environment variable, stripped; "" when unset."""
    return os.environ.get(name, "").strip()
