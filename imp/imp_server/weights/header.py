"""What a model is, read from its files without its weights: `ModelHeader`, the same for every format. Torch-free."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel, readable
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.gguf import GgufFile, is_gguf
from imp_server.weights.hf_folder import HfFolder
from imp_server.weights.hf_templates import chat_templates
from imp_server.weights.sentence_folder import pooling_of

log = logging.getLogger(__name__)

_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_tau",
    "general.sampling.mirostat_eta": "mirostat_eta",
}


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Facts of one model. `hyperparameters` keep the format's own names, GGUF keys without their `<architecture>.`.

    `tokenizer`: for GGUF the `tokenizer.ggml.*` keys without that prefix; for safetensors the parsed
    tokenizer_config.json, with `tokenizer_json` naming the file.
    """

    path: Path
    format: Literal["gguf", "safetensors"]
    architecture: str
    name: str
    hyperparameters: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    context_length: int
    """Positions the model was trained for; 0 = the file doesn't say."""
    n_parameters: int
    quantisation: str
    """How most of the layers' weights are stored, for people."""
    file_bytes: int
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    """By name; `default`, and `tool_use` where the model has one of its own."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Sampling defaults that ship with the model, in the names of generation_config.json."""
    tokenizer_json: Path | None = None
    served_context: int = 0
    """The most positions that are served, where somebody chose fewer than the model was trained for; 0 = all."""
    pooling: str = ""
    """Of a folder for sentence-transformers, see sentence_folder.pooling_of."""

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")


def read_header(path: str | os.PathLike[str]) -> ModelHeader:
    """Raises ModelFileMissing, InvalidModel, UnsupportedModel."""
    path = Path(path)
    if not path.exists():
        raise ModelFileMissing(f"there is no model at {path}")
    if path.is_file() and is_gguf(path):
        return header_of_gguf(GgufFile(path))
    if path.is_dir() and (path / "config.json").is_file():
        return header_of_checkpoint(Checkpoint(HfFolder(path)))
    raise no_model_at(path)


def no_model_at(path: Path) -> UnsupportedModel:
    """For a file that isn't a .gguf, or a folder without config.json."""
    inside = sorted(each.name for each in path.iterdir() if each.is_file() and is_gguf(each)) if path.is_dir() else []
    hint = f"; it holds {', '.join(inside[:3])}: give the path of the file" if inside else ""
    return UnsupportedModel(f"{path.name}: neither a .gguf file nor a folder with config.json{hint}")


def header_of_gguf(file: GgufFile) -> ModelHeader:
    """Raises InvalidModel if a key that every model needs is missing or of the wrong type."""
    meta = file.metadata
    architecture = meta.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise InvalidModel(f"{file.path.name}: the key 'general.architecture' is missing")
    _refuse_other_kinds(meta, file.path.name)
    prefix = architecture + "."
    context = meta.get(f"{prefix}context_length", 0)
    return ModelHeader(
        path=file.path,
        format="gguf",
        architecture=architecture,
        name=str(meta.get("general.name", readable(file.path.stem))),
        hyperparameters={k.removeprefix(prefix): v for k, v in meta.items() if k.startswith(prefix)},
        tokenizer={k.removeprefix("tokenizer.ggml."): v for k, v in meta.items() if k.startswith("tokenizer.ggml.")},
        context_length=context if isinstance(context, int) else 0,
        n_parameters=sum(t.n_elements for t in file.tensors.values()),
        quantisation=_main_type(file),
        file_bytes=file.nbytes,
        chat_templates=_gguf_templates(meta),
        generation={name: meta[key] for key, name in _SAMPLING_KEYS.items() if key in meta},
    )


def _refuse_other_kinds(meta: Mapping[str, Any], where: str) -> None:
    """Files that are no model by themselves, and switches of the whole file that we don't have."""
    kind = meta.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{where}: 'general.type' is {kind!r}: this file is no model by itself")
    if "general.sampling.sequence" in meta:
        log.warning("%s: 'general.sampling.sequence' has no effect: the order of samplers is fixed", where)
    for key in meta:
        if key.startswith(("general.tensor_extra.", "xielu.")):
            raise UnsupportedModel(f"{where}: '{key}' isn't supported")


def header_of_checkpoint(checkpoint: Checkpoint) -> ModelHeader:
    """Raises InvalidModel if config.json lacks `model_type`.

    A model with several parts (text_config) is described by its text part.
    """
    folder = checkpoint.folder
    config = dict(folder.config)
    text = config.get("text_config")
    if isinstance(text, dict):
        config = {**config, **text}
    architecture = config.get("model_type")
    if not isinstance(architecture, str) or not architecture:
        raise InvalidModel(f"{folder.path.name}/config.json: 'model_type' is missing")
    context = config.get("max_position_embeddings", 0)
    tokenizer = folder.optional_json("tokenizer_config.json")
    tokenizer_json = folder.path / "tokenizer.json"
    return ModelHeader(
        path=folder.path,
        format="safetensors",
        architecture=architecture,
        name=readable(folder.path.name),
        hyperparameters=config,
        tokenizer=tokenizer,
        context_length=context if isinstance(context, int) else 0,
        n_parameters=sum(math.prod(checkpoint.shape(n)) for n in checkpoint.names()),
        quantisation=_main_scheme(checkpoint),
        file_bytes=folder.nbytes,
        chat_templates=chat_templates(folder.path, tokenizer),
        generation=folder.optional_json("generation_config.json"),
        tokenizer_json=tokenizer_json if tokenizer_json.is_file() else None,
        pooling=pooling_of(folder),
    )


def _main_scheme(checkpoint: Checkpoint) -> str:
    sizes: Counter[str] = Counter()
    for name in checkpoint.names():
        shape = checkpoint.shape(name)
        if len(shape) > 1:
            sizes[checkpoint.scheme(name)] += math.prod(shape) if ".layers." in name else 1
    return sizes.most_common(1)[0][0] if sizes else "unknown"


def _gguf_templates(meta: Mapping[str, Any]) -> dict[str, str]:
    templates = {}
    for key, value in meta.items():
        if key == "tokenizer.chat_template" and isinstance(value, str):
            templates["default"] = value
        elif key.startswith("tokenizer.chat_template.") and isinstance(value, str):
            templates[key.removeprefix("tokenizer.chat_template.")] = value
    return templates


def _main_type(file: GgufFile) -> str:
    sizes: Counter[str] = Counter()
    for info in file.tensors.values():
        # Matrices of the layers only: a wide vocabulary must not name a small model's quantisation.
        if len(info.shape) > 1:
            sizes[info.type.name] += info.nbytes if info.name.startswith("blk.") else 1
    return sizes.most_common(1)[0][0] if sizes else "unknown"
