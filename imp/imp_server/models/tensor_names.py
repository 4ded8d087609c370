"""Which canonical tensors (models/source.py) a file has, and under which names, where its names follow a pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.mixers import Shapes

_KINDS = (("", "weight"), (".bias", "bias"))
FUSED = {
    "qkv": ("q", "k", "v"),
    "gate_up": ("gate", "up"),
    "shared_gate_up": ("shared_gate", "shared_up"),
    "experts_gate_up": ("experts_gate", "experts_up"),
}
"""Stem of a tensor that holds several, one after the other by rows -> these."""
BY_HEAD = {"kv_b": ("k_b", "v_b")}
"""The same, whose rows are cut into heads, and each head's then into these, of which the first is turned."""
ALTERNATING = {"experts_gate_up_by_turns": ("experts_gate", "experts_up")}
"""The same, whose rows take turns."""
Name = str | tuple[str, ...]
"""Of a tensor of a file, or of those that make one, stacked along a new first axis."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor is: the whole of what is named, or some of its rows: first, behind the last, step."""

    name: Name
    rows: tuple[int, int, int] | None = None
    is_bias: bool = False
    """Its last axis are rows; else the last but one are."""
    transposed: bool = False
    """Its last two axes are the other way round in the file."""
    heads: int = 0
    """Its rows are those of so many heads, `rows` is of each of these; 0 = they aren't cut."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if isinstance(self.name, str) else self.name


Places = dict[str, TensorPlace]


def present_names(
    whole: Mapping[str, str], per_layer: Mapping[str, str], layer: str, n_layers: int, has: Callable[[str], bool]
) -> dict[str, Name]:
    """Canonical name -> name in the file, of the tensors that are there.

    `whole`, `per_layer`: canonical stem -> the file's stem; one that begins with `=` is a whole name, without
    `.weight`; `{e}` in it stands for an expert's number. `layer`: what the file puts before those of a layer, with `{}`
    for its number. `has`: the file has a tensor of this name.
    """
    wanted = dict(whole)
    for index in range(n_layers):
        for ours, theirs in per_layer.items():
            bare = theirs.removeprefix("=")
            wanted[f"layers.{index}.{ours}"] = "=" * (bare != theirs) + layer.format(index) + bare
    found: dict[str, Name] = {}
    for ours, theirs in wanted.items():
        kinds = [("", "")] if theirs.startswith("=") else [(ending, f".{kind}") for ending, kind in _KINDS]
        for ending, kind in kinds:
            name = theirs.removeprefix("=") + kind
            if "{e}" in name:
                experts = _experts(name, has)
                if experts:
                    found[ours + ending] = experts
            elif has(name):
                found[ours + ending] = name
    return found


def _experts(pattern: str, has: Callable[[str], bool]) -> tuple[str, ...]:
    names: list[str] = []
    while has(name := pattern.replace("{e}", str(len(names)))):
        names.append(name)
    return tuple(names)


def placed(
    names: Mapping[str, Name],
    expected: Shapes,
    shape: Callable[[Name], tuple[int, ...]],
    where: str,
    transposed: Callable[[str], bool] = lambda _: False,
) -> Places:
    """Canonical name -> where it is; what the file has as one tensor is taken apart by the rows that are expected.

    `shape`: of what a name stands for; `transposed`: of a tensor of the file. Raises InvalidModel where the parts don't
    fill what is fused.
    """
    places: Places = {}
    for ours, theirs in names.items():
        is_bias = ours.endswith(".bias")
        stem, bias = ours.removesuffix(".bias"), ".bias" * is_bias
        prefix, _, last = stem.rpartition(".")
        turned = isinstance(theirs, str) and transposed(theirs)
        if last in BY_HEAD:
            places |= _by_head(theirs, [f"{prefix}.{part}" for part in BY_HEAD[last]], expected, shape(theirs), where)
            continue
        axis = -1 if is_bias or turned else -2
        if last == "up" and f"{prefix}.gate{bias}" not in names and f"{prefix}.gate{bias}" in expected:
            # GGUF files of fused models call both of them `ffn_up`; of others the gate is missing.
            is_both = shape(theirs)[axis] == 2 * expected[f"{prefix}.gate{bias}"][-1 if is_bias else -2]
            last = "gate_up" if is_both else last
        parts = [f"{prefix}.{part}{bias}" for part in (FUSED | ALTERNATING).get(last, ())]
        if not parts:
            places[ours] = TensorPlace(theirs, None, is_bias, turned)
            continue
        counts = [expected[part][-1 if is_bias else -2] if part in expected else 0 for part in parts]
        n_rows = shape(theirs)[axis]
        if 0 in counts or sum(counts) != n_rows:
            raise InvalidModel(f"{where}: the tensor {theirs!r} has {n_rows} rows, not {sum(counts)}")
        for i, part in enumerate(parts):
            rows = (i, n_rows, len(parts)) if last in ALTERNATING else (sum(counts[:i]), sum(counts[: i + 1]), 1)
            places[part] = TensorPlace(theirs, rows, is_bias, turned)
    return places


def _by_head(name: Name, parts: list[str], expected: Shapes, shape: tuple[int, ...], where: str) -> Places:
    first, second = (expected.get(part, (0, 0, 0)) for part in parts)
    heads, ends = first[0], (first[2], first[2] + second[1])
    if not heads or shape[0] != heads * ends[1]:
        raise InvalidModel(f"{where}: the tensor {name!r} has {shape[0]} rows, not {heads * ends[1]}")
    return {
        parts[0]: TensorPlace(name, (0, ends[0], 1), transposed=True, heads=heads),
        parts[1]: TensorPlace(name, (ends[0], ends[1], 1), heads=heads),
    }


def shape_of(place: TensorPlace, whole: tuple[int, ...]) -> tuple[int, ...]:
    """Of what is at a place. `whole`: of what it names, in the file's order."""
    shape = list(whole)
    if place.heads and place.rows is not None:
        cut = (place.heads, len(range(*place.rows)), shape[-1])
        return (cut[0], cut[2], cut[1]) if place.transposed else cut
    if place.transposed:
        shape[-2:] = shape[:-3:-1]
    if place.rows is not None:
        shape[-1 if place.is_bias else -2] = len(range(*place.rows))
    return tuple(shape)


def refuse_unclaimed(names: set[str], places: Places, inert: tuple[str, ...], where: str) -> None:
    """Raises UnsupportedModel for a tensor that nobody reads. `inert`: how the names of those end that say nothing."""
    claimed = {name for place in places.values() for name in place.names}
    for name in sorted(names - claimed):
        if not name.endswith(inert):
            raise UnsupportedModel(f"{where}: the tensor {name!r} isn't one that this family has")
