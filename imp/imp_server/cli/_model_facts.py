"""What a model file says about itself, and whether we can run it; never raises for a file that we can't."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from imp_server.backends import refuse_unrunnable
from imp_server.backends.base import BLOCK_TOKENS
from imp_server.backends.kv_layout import KvLayout
from imp_server.config import Config
from imp_server.core import ImpError, UnsupportedModel, UserFault, readable
from imp_server.engine.model_files import open_with_tokenizer
from imp_server.models.architecture import Architecture
from imp_server.models.opening import open_model
from imp_server.models.source import ModelSource
from imp_server.text.model import TextModel
from imp_server.weights.header import ModelHeader, read_header
from imp_server.weights.known import Known

OVERHEAD_BYTES = 150_000_000
"""What the engine needs besides weights and KV: interpreter, libraries, activations."""
SOME_CONTEXT = 4096
"""Tokens of the conversation for which `imp ls` tells the memory."""


def memory_of_known(known: Known) -> int:
    """What it takes to run it with a conversation of SOME_CONTEXT tokens."""
    return known.file_bytes + SOME_CONTEXT * known.kv_bytes + OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`problem`: why it isn't supported; empty = it is. Sizes in bytes."""

    path: str
    title: str = ""
    format: str = ""
    architecture: str = ""
    parameters: int = 0
    quantisation: str = ""
    file_bytes: int = 0
    context: int = 0
    layers: int = 0
    width: int = 0
    vocabulary: int = 0
    kv_bytes_per_token: int = 0
    memory_bytes: int = 0
    """For one sequence of `context` tokens."""
    rope_scaling: str = ""
    """How the context was extended, and which of a rope's factors are used; empty = it wasn't."""
    chat_template: bool = False
    problem: str = ""
    exit_code: int = 0
    """Of the error that `problem` tells."""

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        del told["exit_code"]
        return {**told, "supported": not self.problem}


def model_facts(path: Path, *, thorough: bool = False) -> ModelFacts:
    """Reads headers only. `thorough`: makes everything that serving makes of them, so it refuses what serving does."""
    try:
        header = read_header(path)
    except ImpError as error:
        return ModelFacts(readable(path), **_problem(error))
    known: dict[str, Any] = {
        "path": readable(path),
        "title": header.name,
        "format": header.format,
        "architecture": header.architecture,
        "parameters": header.n_parameters,
        "quantisation": header.quantisation,
        "file_bytes": header.file_bytes,
        "context": header.context_length,
        "chat_template": header.chat_template is not None,
    }
    try:
        described = _opened(path, header).architecture if thorough else open_model(path).architecture
    except ImpError as error:
        return ModelFacts(**known, **_problem(error))
    per_token = kv_bytes_per_token(described)
    return ModelFacts(
        **known,
        layers=described.n_layers,
        width=described.width,
        vocabulary=described.vocab_size,
        kv_bytes_per_token=per_token,
        rope_scaling=rope_scaling_text(described),
        memory_bytes=header.file_bytes + per_token * described.context_length + OVERHEAD_BYTES,
    )


def _problem(error: ImpError) -> dict[str, Any]:
    code = error.exit_code if isinstance(error, UserFault) else UnsupportedModel.exit_code
    return {"problem": readable(error.message), "exit_code": code}


def _opened(path: Path, header: ModelHeader) -> ModelSource:
    """As serving opens it. Raises UserFaults."""
    source, _ = open_with_tokenizer(path)
    TextModel.load(header, Config())
    refuse_unrunnable(source)
    return source


def rope_scaling_text(architecture: Architecture) -> str:
    """Factors that depend on length are chosen by the context that is served: here the model's own."""
    told = set()
    for scaling in (rope.scaling for rope in architecture.ropes()):
        if scaling.kind == "longrope":
            which = "long" if architecture.context_length > scaling.original_context else "short"
            told.add(f"longrope, its {which} factors")
        elif scaling.kind != "none":
            told.add(f"{scaling.kind}, {scaling.factor:g} times")
        elif scaling.frequency_factors:
            told.add("factors of the file")
    return "; ".join(sorted(told))


def kv_bytes_per_token(architecture: Architecture) -> int:
    """Bytes of keys and values that one token adds, at two bytes a value; layers with a window count as well."""
    grow = [group for group in architecture.cache_groups if group.kind != "state"]
    return sum(KvLayout(architecture, group, "bf16").block_bytes // BLOCK_TOKENS for group in grow)
