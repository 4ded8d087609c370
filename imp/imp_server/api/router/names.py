"""Which model a name means: its id, an alias, or an alias that is a pattern."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import NamedTuple

_LONGEST = 512
"""Characters of a name that is held against patterns."""


class Named(NamedTuple):
    """A model's id, and what else it answers to."""

    id: str
    aliases: tuple[str, ...]


def named(alias: str, own: str) -> Named:
    """`alias`: as configured, `a,b` is two. The first that is no pattern is the model's id; without one, `own` is."""
    words = tuple(dict.fromkeys(word.strip() for word in alias.split(",") if word.strip()))
    model_id = next((word for word in words if not is_pattern(word)), own)
    return Named(model_id, tuple(word for word in words if word != model_id))


def is_pattern(alias: str) -> bool:
    return "*" in alias or "?" in alias


def best_match(name: str, aliases: Iterable[str]) -> str | None:
    """The alias that means `name`: itself, else the pattern with the most letters of its own; of equals the first."""
    if len(name) > _LONGEST:
        return None
    fitting = [alias for alias in aliases if alias == name or (is_pattern(alias) and _fits(name, alias))]
    return max(fitting, key=lambda alias: (alias == name, len(re.sub(r"[*?]", "", alias))), default=None)


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
