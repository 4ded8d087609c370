"""Which LoRA adapters are loaded with a model, in the order of their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from imp_server.config.generating import AdapterSettings
from imp_server.core import ConfigError

LORA_FLAGS = ("--lora", "--lora-scaled")
"""Of llama-server."""
_MOST_SCALE = 1000
"""As in requests."""


class LoraEntry(NamedTuple):
    """`scale`: by how much it counts in requests that don't say."""

    name: str
    path: str
    scale: float


def lora_entries(settings: AdapterSettings) -> tuple[LoraEntry, ...]:
    """Those of `lora`, then those of `lora_scaled`. Raises ConfigError."""
    given = [(text, *_named(text), 0.0) for text in settings.lora]
    given += [(text, *_named(path), scale) for text, path, scale in map(_scaled, settings.lora_scaled)]
    if len(given) > settings.max_loaded:
        raise ConfigError(f"{len(given)} adapters are more than adapters.max_loaded allows ({settings.max_loaded})")
    entries: list[LoraEntry] = []
    for text, name, path, scale in given:
        taken = {entry.name for entry in entries}
        if name in taken:
            raise ConfigError(f"{text}: two adapters are called {name!r}")
        own = name or _free(PurePath(path).stem or path, taken)
        entries.append(LoraEntry(own, path, 0.0 if settings.init_without_apply else scale))
    return tuple(entries)


def _named(text: str) -> tuple[str, str]:
    """Name ("" = that of its file) and path."""
    name, found, path = text.partition("=")
    name, path = (name.strip(), path.strip()) if found else ("", text.strip())
    if not path or (found and not name):
        raise ConfigError(f"{text!r} names no adapter: write NAME=PATH")
    return name, path


def _scaled(text: str) -> tuple[str, str, float]:
    path, _, number = text.rpartition(":")
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not path or not abs(scale) <= _MOST_SCALE:
        raise ConfigError(f"{text!r} isn't PATH:SCALE, where SCALE is a number from -{_MOST_SCALE} to {_MOST_SCALE}")
    return text, path, scale


def _free(name: str, taken: set[str]) -> str:
    """Files in different folders may have one name."""
    number = 2
    own = name
    while own in taken:
        own, number = f"{name}-{number}", number + 1
    return own


def of_llama_server_flags(given: Sequence[tuple[str, str]]) -> str:
    """What its flags say, each with its value, as adapters.lora_scaled: numbers are in the order in which they come."""
    files = [(flag, text) for flag, value in given for text in value.split(",") if text]
    return ",".join(f"{text}:1" if flag == LORA_FLAGS[0] else text for flag, text in files)
