"""Rotary positions as a Hugging Face config states them: `rope_parameters`, or `rope_theta` and `rope_scaling`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.config_keys import ROPE_KEYS
from imp_server.models.rotation import Rope, RopeScaling, RopeStyle, yarn_magnitude

_KINDS = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn", "longrope": "longrope"}
_KINDS |= {"su": "longrope", "dynamic": "none"}
TOP_LEVEL = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
"""Keys that stand beside the nested object in some configs."""


class _RopeValues:
    """The nested object's values, then the config's own; remembers which were asked for."""

    def __init__(self, config: Mapping[str, Any], nested: Mapping[str, Any], where: str) -> None:
        self._values = {**config, **nested}
        self._nested, self._where = nested, where
        self._asked = {"rope_type", "type"}

    def number(self, name: str, default: float) -> float:
        self._asked.add(name)
        value = self._values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise InvalidModel(f"{self._where}: '{name}' is {value!r}, not a number")
        return float(value)

    def list_of_numbers(self, name: str, n: int) -> tuple[float, ...]:
        self._asked.add(name)
        value = self._values.get(name)
        if (
            not isinstance(value, list)
            or len(value) != n
            or not all(isinstance(v, int | float) and v > 0 for v in value)
        ):
            raise InvalidModel(f"{self._where}: '{name}' must be a list of {n} positive numbers")
        return tuple(float(v) for v in value)

    def note(self, *names: str) -> None:
        """They are read, but change nothing here."""
        self._asked.update(names)

    def flag(self, name: str, default: bool) -> bool:
        self._asked.add(name)
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise InvalidModel(f"{self._where}: '{name}' is {value!r}, not true or false")
        return value

    def refuse_unread(self) -> None:
        unread = {name: value for name, value in self._nested.items() if name not in self._asked}
        ROPE_KEYS.check(unread, f"{self._where}: 'rope_scaling.")


def rope_of_config(
    config: Mapping[str, Any],
    head_size: int,
    where: str,
    *,
    style: RopeStyle = "neox",
    turning: float = 1.0,
    own: tuple[str, ...] = (),
    served: int = 0,
) -> Rope:
    """Of layers that see all. `turning`: the share of a head that turns where the config doesn't say; `own`: keys that
    somebody else reads; `served`: positions that are, 0 = the model's own.

    Raises InvalidModel for a value of the wrong kind, UnsupportedModel for an unknown scaling.
    """
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(nested, Mapping) and "full_attention" in nested:
        nested = nested["full_attention"]
    if not isinstance(nested, Mapping):
        raise InvalidModel(f"{where}: 'rope_scaling' isn't an object")
    kind = str(nested.get("rope_type", nested.get("type", "default")))
    if kind not in _KINDS:
        raise UnsupportedModel(f"{where}: rope scaling '{kind}' isn't known for this family")
    values = _RopeValues(config, nested, where)
    values.note(*own)
    dims = int(head_size * values.number("partial_rotary_factor", turning))
    if dims < 2 or dims % 2 or dims > head_size:
        raise InvalidModel(f"{where}: {dims} rotary dimensions of {head_size}")
    base = values.number("rope_theta", 10000.0)
    if kind == "dynamic":
        # Without alpha the base grows beyond the model's own context only, and that is the longest that is served.
        alpha = values.number("alpha", 1.0)
        if alpha <= 0 or dims < 4:
            raise InvalidModel(f"{where}: the rope scaling's 'alpha' is {alpha:g} for {dims} dimensions")
        base *= alpha ** (dims / (dims - 2))
        values.note("factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow")
    if _KINDS[kind] == "longrope":
        scaling = _longrope(values, dims, served)
    else:
        scaling = RopeScaling() if _KINDS[kind] == "none" else _scaling(values, kind, where)
    values.refuse_unread()
    return Rope(style, base, dims, scaling)


def _scaling(values: _RopeValues, kind: str, where: str) -> RopeScaling:
    factor = values.number("factor", 1.0)
    if factor <= 0:
        raise InvalidModel(f"{where}: the rope scaling's 'factor' is {factor:g}, not a positive number")
    context = values.number("original_max_position_embeddings", values.number("max_position_embeddings", 0))
    return RopeScaling(
        kind=_KINDS[kind],  # type: ignore[arg-type]
        factor=factor,
        original_context=int(context),
        attention_factor=_attention_factor(values, factor) if kind == "yarn" else 1.0,
        low_freq_factor=values.number("low_freq_factor", 1.0),
        high_freq_factor=values.number("high_freq_factor", 4.0),
        beta_fast=values.number("beta_fast", 0) or 32.0,
        beta_slow=values.number("beta_slow", 0) or 1.0,
        truncate=values.flag("truncate", True),
    )


def _longrope(values: _RopeValues, dims: int, served: int) -> RopeScaling:
    """The factors are chosen once, by the context that is served."""
    context = values.number("max_position_embeddings", 0)
    original = values.number("original_max_position_embeddings", context)
    lengths = [values.list_of_numbers(f"{length}_factor", dims // 2) for length in ("short", "long")]
    is_long = min(context, served or context) > original
    factor = values.number("factor", context / original if original else 1.0)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    mscales = [values.number(f"{length}_mscale", 0.0) for length in ("short", "long")]
    return RopeScaling(
        kind="longrope",
        factor=factor,
        original_context=int(original),
        attention_factor=mscales[is_long] or values.number("attention_factor", default),
        frequency_factors=lengths[is_long],
    )


def _attention_factor(values: _RopeValues, factor: float) -> float:
    """What the config says on top of yarn's own 0.1 ln(factor) + 1, which it may replace."""
    share, share_of_all = values.number("mscale", 0), values.number("mscale_all_dim", 0)
    own = yarn_magnitude(factor)
    shared = yarn_magnitude(factor, share) / yarn_magnitude(factor, share_of_all) if share and share_of_all else own
    return values.number("attention_factor", shared) / own
