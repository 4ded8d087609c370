"""Which canonical tensors (models/source.py) a file has, and under which names, where its names follow a pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.mixers import Shapes

_KINDS = (("", "weight"), (".bias", "bias"))
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
"""Stem of a tensor that holds several, one after the other by rows -> these."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file, or `rows` of it: first, and the one behind the last."""

    name: str
    rows: tuple[int, int] | None = None


Places = dict[str, Place]


def present_names(
    whole: Mapping[str, str], per_layer: Mapping[str, str], layer: str, n_layers: int, has: Callable[[str], bool]
) -> dict[str, str]:
    """Canonical name -> name in the file, of the tensors that are there.

    `whole`, `per_layer`: canonical stem -> the file's stem. `layer`: what the file puts before those of a layer, with
    `{}` for its number. `has`: the file has a tensor of this name.
    """
    wanted = dict(whole)
    for index in range(n_layers):
        wanted |= {f"layers.{index}.{ours}": layer.format(index) + theirs for ours, theirs in per_layer.items()}
    pairs = ((f"{ours}{ending}", f"{theirs}.{kind}") for ours, theirs in wanted.items() for ending, kind in _KINDS)
    return {ours: theirs for ours, theirs in pairs if has(theirs)}


def placed(names: Mapping[str, str], expected: Shapes, shape: Callable[[str], tuple[int, ...]], where: str) -> Places:
    """Canonical name -> where it is; what the file has as one tensor is taken apart by the rows that are expected.

    `shape`: of a tensor of the file. Raises InvalidModel where the parts don't fill what is fused.
    """
    places: Places = {}
    for ours, theirs in names.items():
        stem, bias = ours.removesuffix(".bias"), ".bias" if ours.endswith(".bias") else ""
        prefix, _, last = stem.rpartition(".")
        if last == "up" and f"{prefix}.gate{bias}" not in names and f"{prefix}.gate{bias}" in expected:
            last = "gate_up"  # GGUF files of fused models call both of them `ffn_up`
        if last not in FUSED:
            places[ours] = Place(theirs)
            continue
        parts = [f"{prefix}.{part}{bias}" for part in FUSED[last]]
        counts = [expected[part][0] if part in expected else 0 for part in parts]
        if 0 in counts or sum(counts) != shape(theirs)[0]:
            raise InvalidModel(f"{where}: the tensor {theirs!r} has {shape(theirs)[0]} rows, not {sum(counts)}")
        first = 0
        for part, count in zip(parts, counts, strict=True):
            places[part] = Place(theirs, (first, first + count))
            first += count
    return places


def refuse_unclaimed(names: set[str], places: Places, inert: tuple[str, ...], where: str) -> None:
    """Raises UnsupportedModel for a tensor that nobody reads. `inert`: how the names of those end that say nothing."""
    unclaimed = sorted(names - {place.name for place in places.values()})
    for name in unclaimed:
        if not name.endswith(inert):
            raise UnsupportedModel(f"{where}: the tensor {name!r} isn't one that this family has")
