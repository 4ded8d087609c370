"""llama.cpp's `samplers`: which of them are used. Those that aren't named are switched off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LETTERS = {"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p",
            "x": "xtc", "t": "temperature"}  # fmt: skip
_OFF: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
"""Values that make each sampler do nothing."""


def with_samplers(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body's sampling fields under our names, those of samplers that weren't named at values that do nothing."""
    fields = dict(body)
    if "repeat_penalty" in fields:
        fields["repetition_penalty"] = fields["repeat_penalty"]
    for sampler in _OFF.keys() - _named(body.get("samplers")):
        fields |= _OFF[sampler]
    return fields


def sampler_names(wanted: Any) -> list[str]:
    """Those that are used, in the order in which they are applied."""
    named = _named(wanted)
    return [name for name in _LETTERS.values() if name in named]


def _named(wanted: Any) -> set[str]:
    if wanted is None:
        return set(_OFF)
    names = [_LETTERS[letter] for letter in wanted] if isinstance(wanted, str) else wanted
    return {"typ_p" if name == "typical_p" else name for name in names}
