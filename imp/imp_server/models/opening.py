"""Opens a model: path -> header -> family (found by folder) -> description and tensors, checked against each other."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel
from imp_server.models import families
from imp_server.models.architecture import Architecture
from imp_server.models.checkpoint_reader import CheckpointReader, names_in_checkpoint
from imp_server.models.gguf_reader import GgufReader, names_in_gguf
from imp_server.models.reader import Reader
from imp_server.models.refused import reason
from imp_server.models.shapes import check_shapes, expected_shapes
from imp_server.models.source import CheckpointSource, GgufSource, ModelSource
from imp_server.models.tensor_names import Name, Places, placed, refuse_unclaimed, shape_of
from imp_server.weights.checkpoint import Checkpoint, text_part
from imp_server.weights.gguf import GgufFile, is_gguf
from imp_server.weights.header import ModelHeader, header_of_checkpoint, header_of_gguf, no_model_at
from imp_server.weights.hf_folder import HfFolder

INERT_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "rotary_emb.inv_freq")
"""They say what the header says, or were read with it."""


class Family(Protocol):
    """What a module of models/families offers. It may also have GGUF_NAMES and CHECKPOINT_NAMES: canonical name of a
    layer's tensor -> its stem in such a file, where that isn't what most families have; or functions instead,
    gguf_names(architecture) and checkpoint_names(model type, description); CONFIG_DEFAULTS: model type -> values of
    keys that published configs leave out; and is_turned(name, scheme): whether a checkpoint's tensor has its last two
    axes exchanged.
    """

    GGUF_ARCHITECTURES: tuple[str, ...]
    HF_MODEL_TYPES: tuple[str, ...]

    def describe(self, reader: Reader) -> Architecture: ...


def open_model(path: str | os.PathLike[str], served_context: int = 0) -> ModelSource:
    """`served_context`: see ModelHeader. Raises ModelFileMissing, InvalidModel, UnsupportedModel."""
    path = Path(path)
    if not path.exists():
        raise ModelFileMissing(f"there is no model at {path}")
    if path.is_dir():
        return _open_checkpoint(path, served_context)
    if not is_gguf(path):
        raise no_model_at(path)
    file = GgufFile(path)
    header = replace(header_of_gguf(file), served_context=served_context)
    family = families_by_architecture().get(header.architecture)
    if family is None:
        raise _unsupported(path.name, "architecture", header.architecture, sorted(families_by_architecture()))
    reader = GgufReader(header, file)
    architecture = family.describe(reader)
    reader.finish()
    by_kind = getattr(family, "gguf_names", None)
    own = by_kind(header.architecture) if by_kind else getattr(family, "GGUF_NAMES", {})
    names = _without(names_in_gguf(architecture.n_layers, file, own), reader)
    tensors = {name for name in file.tensors if not reader.is_left_out(name)}
    places = _checked(architecture, names, lambda name: file.tensors[name].shape, tensors, path.name)
    return GgufSource(file, header, architecture, places)


def _open_checkpoint(path: Path, served_context: int) -> ModelSource:
    checkpoint = text_part(Checkpoint(HfFolder(path)))
    header = replace(header_of_checkpoint(checkpoint), served_context=served_context)
    family = families_by_model_type().get(header.architecture)
    if family is None:
        raise _unsupported(path.name, "model type", header.architecture, sorted(families_by_model_type()))
    header = _with_defaults(header, getattr(family, "CONFIG_DEFAULTS", {}).get(header.architecture, {}))
    reader = CheckpointReader(header, checkpoint)
    architecture = family.describe(reader)
    reader.finish()
    by_kind = getattr(family, "checkpoint_names", None)
    own = by_kind(header.architecture, architecture) if by_kind else getattr(family, "CHECKPOINT_NAMES", {})
    names = names_in_checkpoint(architecture.n_layers, checkpoint, own, tied_head=architecture.tied_head)
    names = _without(names, reader)
    tensors = {name for name in checkpoint.names() if not reader.is_left_out(name)}
    tensors -= {"lm_head.weight"} if architecture.tied_head else set()
    is_turned = getattr(family, "is_turned", None)
    turned = (lambda name: is_turned(name, checkpoint.scheme(name))) if is_turned else (lambda _: False)
    places = _checked(architecture, names, checkpoint.shape, tensors, path.name, turned)
    return CheckpointSource(checkpoint, header, architecture, places)


def _with_defaults(header: ModelHeader, defaults: Mapping[str, Any]) -> ModelHeader:
    """What a config leaves to the code that it was published with."""
    values = {**defaults, **{name: value for name, value in header.hyperparameters.items() if value is not None}}
    context = header.context_length or int(defaults.get("max_position_embeddings", 0))
    return replace(header, hyperparameters=values, context_length=context) if defaults else header


def _without(names: dict[str, Name], reader: Reader) -> dict[str, Name]:
    """But for those of tensors that aren't read."""
    return {
        ours: theirs for ours, theirs in names.items() if not isinstance(theirs, str) or not reader.is_left_out(theirs)
    }


def _unsupported(where: str, what: str, name: str, known: list[str]) -> UnsupportedModel:
    why = reason(name) or f"{', '.join(known)} are"
    return UnsupportedModel(f"{where}: the {what} {name!r} isn't supported ({why})")


def _checked(
    architecture: Architecture,
    names: dict[str, Name],
    shape: Callable[[str], tuple[int, ...]],
    tensors: set[str],
    where: str,
    transposed: Callable[[str], bool] = lambda _: False,
) -> Places:
    """Where the description's tensors are; nothing is missing, misshapen or left over."""

    def whole(name: Name) -> tuple[int, ...]:
        if isinstance(name, str):
            return shape(name)
        first = shape(name[0])
        for other in name[1:]:
            if shape(other) != first:
                raise InvalidModel(f"{where}: the tensor {other!r} is {shape(other)}, {name[0]!r} is {first}")
        return (len(name), *first)

    places = placed(names, expected_shapes(architecture), whole, where, transposed)
    check_shapes(architecture, {ours: shape_of(place, whole(place.name)) for ours, place in places.items()}, where)
    refuse_unclaimed(tensors, places, INERT_TENSORS, where)
    return places


@cache
def families_by_model_type() -> dict[str, Family]:
    """config.json's `model_type` -> the family module that describes it."""
    return cast(dict[str, Family], _families("HF_MODEL_TYPES"))


@cache
def families_by_architecture() -> dict[str, Family]:
    """GGUF's `general.architecture` -> the family module that describes it."""
    return cast(dict[str, Family], _families("GGUF_ARCHITECTURES"))


def _families(claim: str) -> dict[str, ModuleType]:
    """The modules of models/families by the names that their constant `claim` lists."""
    found: dict[str, ModuleType] = {}
    for info in pkgutil.iter_modules(families.__path__):
        family = import_module(f"{families.__name__}.{info.name}")
        for name in getattr(family, claim, ()):
            if name in found:
                raise RuntimeError(f"two families have {name} among their {claim}")
            found[name] = family
    return found
