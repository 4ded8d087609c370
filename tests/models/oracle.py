"""Tiny random checkpoints and what transformers makes of them: the oracle that families are held against.

Every parameter is drawn anew, so that a tensor which is dropped, swapped or read wrong shows: norms 1 +- 0.3, biases
and sinks far from zero, matrices so large that attention is far from uniform. Values lie on a coarse grid, so files of
them are small.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from imp_server.backends.base import Backend
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.backends.driver import Driver

Floats = np.ndarray[Any, Any]
TOLERANCE = 1e-4
MOVES = 100 * TOLERANCE
"""By so much must logits move, relative to the largest, when a tensor or a field is another."""
VOCABULARY = 288
N_IDS = 75
IDS: list[int] = np.random.default_rng(5).integers(3, 256, N_IDS).tolist()
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
"""Sizes that most families share; an eps that is large enough to show."""

ABSENT = object()
"""The value of a key of SMALL that the family doesn't have."""

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]


def as_saved(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    return tensors, config


@dataclass(frozen=True)
class Case:
    """One model of a family. `published`: from the layout that transformers saves to that of published files."""

    kind: str
    """config.json's model_type."""
    config: Mapping[str, Any]
    published: Callable[[Tensors, Config], tuple[Tensors, Config]] = as_saved
    zero_centred_norms: bool = False
    pre: str = "gpt-2"
    """GGUF's name for how the family's text is cut before BPE; empty = SentencePiece."""
    specials: tuple[str, ...] = ("<unk>", "<s>", "</s>")
    is_saved: bool = True
    """False: transformers saves another family than the published files are of."""
    seed: int = 0
    """Another draw, where one expert is almost as good as the next."""
    prepare: Callable[[torch.nn.Module], None] = lambda _: None
    """What is done with the drawn model."""
    has_gguf: bool = True
    """False: llama.cpp's converter doesn't take it, or loses something."""
    model_class: str = ""
    """transformers' own, where it isn't found by the config."""
    has_cpu: bool = True
    """False: the kernels lack a part of it."""
    tokenizer_class: str = "PreTrainedTokenizerFast"
    untouched: tuple[str, ...] = ()
    """Fields of the description that may change without a trace in the logits, with the reason beside the case."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Part of a parameter's name -> its scale, where the usual one doesn't do."""

    def full_config(self) -> Config:
        return {name: value for name, value in {**SMALL, **self.config}.items() if value is not ABSENT}


def model_of(case: Case) -> Any:
    """transformers' own, in float32, its parameters drawn by their names."""
    torch.set_num_threads(1)
    config = AutoConfig.for_model(case.kind, **case.full_config())
    config._attn_implementation = "eager"
    maker: Any = getattr(transformers, case.model_class) if case.model_class else AutoModelForCausalLM
    model: Any = (maker(config) if case.model_class else maker.from_config(config)).eval().float()
    named = [*model.named_parameters(), *_drawn_buffers(model)]
    for name, parameter in named:
        parameter.data = torch.from_numpy(_drawn(case, name, tuple(parameter.shape)))
    case.prepare(model)
    model.tie_weights()
    return model


def _drawn_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    saved = set(model.state_dict())
    return [(name, buffer) for name, buffer in model.named_buffers() if name in saved]


def _drawn(case: Case, name: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(zlib.crc32(name.encode()) + case.seed)
    values = np.clip(np.rint(rng.standard_normal(shape) * 2), -3, 3) / 2
    scale = next((scale for part, scale in case.sizes.items() if part in name), None)
    if scale is not None:
        return (values * scale).astype(np.float32)
    if "norm" in name and name.endswith(".weight"):
        return (values * 0.3 + (0.0 if case.zero_centred_norms else 1.0)).astype(np.float32)
    if len(shape) == 1:
        return (values * 0.5).astype(np.float32)
    return (values * 2.0 ** np.round(np.log2(1.6 * shape[-1] ** -0.5))).astype(np.float32)


def write_checkpoint(case: Case, model: Any, path: Path, *, published: bool) -> None:
    """config.json and model.safetensors, as transformers saves them or as published files have them."""
    model.save_pretrained(path)
    if not published:
        return
    config = old_config(json.loads((path / "config.json").read_text()))
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if config.get("tie_word_embeddings", True):
        tensors.pop("lm_head.weight", None)
    tensors, config = case.published(tensors, config)
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")


def old_config(config: Config) -> Config:
    """The keys of before version 5 of transformers, which published files have."""
    rope = config.pop("rope_parameters", None) or {}
    if "rope_theta" in rope:
        config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type", "default")
    if kind != "default":
        config["rope_scaling"] = {"rope_type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype", "float32")
    return config


def oracle_logits(model: torch.nn.Module, ids: list[int]) -> Floats:
    with torch.inference_mode():
        logits: Floats = model(torch.tensor([ids])).logits[0].numpy()
    return logits


@cache
def expected(case_key: str, cases: Callable[[str], Case]) -> tuple[torch.nn.Module, Floats]:
    model = model_of(cases(case_key))
    return model, oracle_logits(model, IDS)


def error(got: Floats, wanted: Floats) -> float:
    """The largest difference, as a share of the largest logit."""
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def check_logits(backend: Backend, wanted: Floats, tolerance: float = TOLERANCE) -> None:
    """Whole, in chunks, token by token at the end, and in a batch: all are the oracle's."""
    driver = Driver(backend)
    whole = driver.logits(IDS, N_IDS)
    assert error(whole, wanted) <= tolerance
    np.testing.assert_array_equal(driver.logits(IDS, 16), whole)
    first, second = driver.sequence(N_IDS), driver.sequence(N_IDS)
    driver.run([(first, IDS[:20])])
    driver.run([(first, IDS[20:60]), (second, IDS[:33])])
    for at in range(60, N_IDS):
        driver.run([(second, IDS[at - 27 : at - 26]), (first, IDS[at : at + 1])])
    np.testing.assert_array_equal(np.concatenate(first.logits), whole)
    np.testing.assert_array_equal(np.concatenate(second.logits), whole[: N_IDS - 27])


def greedy(backend: Backend, n: int) -> list[int]:
    driver = Driver(backend)
    lane = driver.sequence(N_IDS + n)
    ids = list(IDS)
    for _ in range(n):
        (result,) = driver.run([(lane, ids[lane.n_done :])])
        assert result.logits is not None
        ids.append(int(result.logits[-1].argmax()))
    return ids[N_IDS:]
