"""Which canonical tensors (models/source.py) a file has, and under which names, where its names follow a pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_KINDS = (("", "weight"), (".bias", "bias"))


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
