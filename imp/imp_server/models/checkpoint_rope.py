"""Rotary positions as a Hugging Face config states them: `rope_parameters`, or `rope_theta` and `rope_scaling`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.architecture import Rope, RopeScaling


def rope_of_config(config: Mapping[str, Any], head_size: int, where: str) -> Rope:
    """Raises InvalidModel for a value of the wrong kind, UnsupportedModel for an unknown scaling."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(nested, Mapping):
        raise InvalidModel(f"{where}: 'rope_scaling' isn't an object")
    values = {**config, **nested}

    def number(name: str, default: float) -> float:
        value = values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise InvalidModel(f"{where}: '{name}' is {value!r}, not a number")
        return float(value)

    kind = str(nested.get("rope_type", nested.get("type", "default")))
    kinds = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
    if kind not in kinds:
        raise UnsupportedModel(f"{where}: rope scaling '{kind}' isn't known for this family")
    dims = int(head_size * number("partial_rotary_factor", 1.0))
    if dims < 2 or dims % 2 or dims > head_size:
        raise InvalidModel(f"{where}: {dims} rotary dimensions of {head_size}")
    if kind == "default":
        return Rope("neox", number("rope_theta", 10000.0), dims)
    scaling = RopeScaling(
        kind=kinds[kind],  # type: ignore[arg-type]
        factor=number("factor", 1.0),
        original_context=int(number("original_max_position_embeddings", number("max_position_embeddings", 0))),
        low_freq_factor=number("low_freq_factor", 1.0),
        high_freq_factor=number("high_freq_factor", 4.0),
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
    )
    return Rope("neox", number("rope_theta", 10000.0), dims, scaling)
