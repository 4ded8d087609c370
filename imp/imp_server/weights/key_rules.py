"""What becomes of keys of a header that no family looks at: known to change nothing, or refused by name."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from imp_server.core import UnsupportedModel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyRules:
    """Rules of one format. A key that no rule knows is told of in the log."""

    inert: Collection[str]
    """They say nothing about the forward: names, training, defaults of a library."""
    neutral: Mapping[str, tuple[Any, ...]]
    """Of keys that would change it: the values that don't. Empty = none does."""
    foreign: tuple[str, ...] = ()
    """How the keys of mechanisms begin that are none of ours. Zero, false and nothing are neutral there."""

    def check(self, unread: Mapping[str, Any], where: str) -> None:
        """Raises UnsupportedModel naming the key. `where`: what an error begins with, up to the key's name."""
        unknown = []
        for name, value in unread.items():
            if value is None or name in self.inert:
                continue
            if name in self.neutral:
                is_harmless = any(_equal(value, each) for each in self.neutral[name])
            elif name.startswith(self.foreign):
                is_harmless = any(_equal(value, nothing) for nothing in (0, False, "", ()))
            else:
                unknown.append(name)
                continue
            if not is_harmless:
                raise UnsupportedModel(f"{where}{name}' is {_shown(value)}, which isn't supported for this family")
        if unknown:
            file, _, prefix = where.rpartition("'")
            names = ", ".join(prefix + name for name in sorted(unknown))
            log.warning("%skeys that aren't known and have no effect: %s", file, names)


def _equal(value: Any, neutral: Any) -> bool:
    """A list is neutral if it is empty or each of its items is."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return all(_equal(item, neutral) for item in value) if neutral != () else not value
    if isinstance(value, bool) or isinstance(neutral, bool | str):
        return type(value) is type(neutral) and value == neutral
    return isinstance(value, int | float) and isinstance(neutral, int | float) and value == neutral


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
