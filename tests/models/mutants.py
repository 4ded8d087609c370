"""Descriptions and tensors that differ in one thing from a model's own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from imp_server.models.architecture import Architecture, Layer, grouped
from imp_server.models.feed_forwards import Dense, Experts
from imp_server.models.mixers import Attention, Temperature
from imp_server.models.rotation import Rope, RopeScaling
from imp_server.models.source import ModelSource, RawTensor

NOT_OF_THE_FORWARD = frozenset(
    {
        "family",
        "context_length",  # a limit
        "n_layers",
        "cache_groups",  # they follow from the layers
        "cache_group",
        "layers",
        "pooling",  # what is done with hidden states
        "position_embeddings",  # no family here has these three
        "token_types",
        "embedding_norm",
    }
)
OF_A_KIND = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_context", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_context", "attention_factor", "beta_fast", "beta_slow"),
    "longrope": ("attention_factor", "frequency_factors"),
}
"""Fields of a RopeScaling that its kind uses."""


def values_like(value: Any, hint: Any) -> Iterator[Any]:
    """Other values of a field."""
    if get_origin(hint) is Literal:
        yield from (other for other in get_args(hint) if other != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 7
    elif isinstance(value, float):
        yield value * 3 if value else 0.5
    elif isinstance(value, Rope):
        if type(None) in get_args(hint):
            yield None
        yield from ropes_like(value)
    elif isinstance(value, tuple):
        yield tuple(item * 1.5 for item in value)
    elif isinstance(value, Temperature):
        yield None
        yield Temperature(value.share * 2, value.step)
        yield Temperature(value.share, value.step * 2)
    elif value is None and float in get_args(hint):
        yield 0.5
    elif value is None and Rope in get_args(hint):
        yield Rope(dims=16)
    elif value is None and Temperature in get_args(hint):
        yield Temperature(0.5, 8)


def ropes_like(rope: Rope) -> Iterator[Rope]:
    yield replace(rope, style="neox" if rope.style == "interleaved" else "interleaved")
    yield replace(rope, base=rope.base * 4)
    yield replace(rope, dims=rope.dims // 2)
    hints = get_type_hints(RopeScaling)
    for name in OF_A_KIND[rope.scaling.kind]:
        for other in values_like(getattr(rope.scaling, name), hints[name]):
            yield replace(rope, scaling=replace(rope.scaling, **{name: other}))
    if rope.scaling.kind != "none":
        yield replace(rope, scaling=RopeScaling())


def is_idle(part: Any, name: str) -> bool:
    """A field that says nothing beside another's value."""
    if isinstance(part, Dense) and name == "cutoff":
        return not part.gated
    if isinstance(part, Architecture) and name == "layer_vocab_size":
        return not part.layer_embedding
    if isinstance(part, Attention) and part.shares >= 0 and name in ("v_norm", "keys_are_values"):
        return True
    if isinstance(part, Attention):
        return name in ("bare_qk_norm", "keys_are_values") and part.qk_norm == "none" and not part.v_norm
    if not isinstance(part, Experts):
        return False
    alone = {
        **dict.fromkeys(("n_groups", "top_groups", "group_strength"), part.gating == "sparse_mixer"),
        "jitter": part.gating != "sparse_mixer",
        "normalise_top_k": part.gating == "sparse_mixer",
        "shared_scale": part.shared_hidden == 0,
        "shared_gate": part.shared_hidden == 0,
    }
    if part.n_groups == 1:
        alone |= {"top_groups": True, "group_strength": True}
    return alone.get(name, False)


def altered_fields(part: Any) -> Iterator[tuple[str, Any]]:
    """(name of the field, the part with another value there)."""
    assert is_dataclass(part)
    hints = get_type_hints(type(part))
    for field in fields(part):
        if field.name not in NOT_OF_THE_FORWARD and not is_idle(part, field.name):
            value = getattr(part, field.name)
            others = [value - 1] if field.name == "top_k" else values_like(value, hints[field.name])
            for other in others:
                yield f"{field.name}={other}", replace(part, **{field.name: other})  # type: ignore[type-var]


def altered_layers(layer: Layer) -> Iterator[tuple[str, Layer]]:
    for name, mixer in altered_fields(layer.mixer):
        yield f"mixer.{name}", replace(layer, mixer=mixer)
    for name, feed_forward in altered_fields(layer.feed_forward):
        yield f"feed_forward.{name}", replace(layer, feed_forward=feed_forward)
    yield from altered_fields(layer)


def descriptions_like(architecture: Architecture) -> Iterator[tuple[str, Architecture]]:
    """Each field of the whole, and of every layer that differs from those before it, in all layers that are alike."""
    yield from altered_fields(architecture)
    for kind in dict.fromkeys(architecture.layers):
        for name, other in altered_layers(kind):
            layers, groups = grouped([other if layer == kind else layer for layer in architecture.layers])
            at = architecture.layers.index(kind)
            yield f"layers.{at}.{name}", replace(architecture, layers=layers, cache_groups=groups)


class Mutant:
    """`source` with another description, or with its tensors under each other's names."""

    def __init__(
        self, source: ModelSource, architecture: Architecture | None = None, swapped: dict[str, str] | None = None
    ) -> None:
        self.header = source.header
        self.architecture = architecture or source.architecture
        self.places = source.places
        self._source, self._swapped = source, swapped or {}

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def names(self) -> Collection[str]:
        return self._source.names()

    def raw(self, name: str) -> RawTensor:
        return self._source.raw(self._swapped.get(name, name))

    def array(self, name: str) -> np.ndarray[Any, Any]:
        return self._source.array(self._swapped.get(name, name))


def _commute(source: ModelSource, one: str, other: str) -> bool:
    """Norms of q and k of one layer, where nothing comes between them and the product of both."""
    layer = one.rpartition(".")[0]
    if {one, other} != {f"{layer}.q_norm", f"{layer}.k_norm"} or source.raw(one).shape != source.raw(other).shape:
        return False
    mixer = source.architecture.layers[int(layer.partition(".")[2])].mixer
    assert isinstance(mixer, Attention)
    return mixer.rope is None or mixer.qk_norm == "per_head_after_rope"


def swaps(source: ModelSource) -> Iterator[dict[str, str]]:
    """Each tensor with another of its shape."""
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name in source.names():
        by_shape.setdefault(source.raw(name).shape, []).append(name)
    for names in by_shape.values():
        for one, other in zip(names, [*names[1:], names[0]]):
            if one != other and not _commute(source, one, other):
                yield {one: other, other: one}
