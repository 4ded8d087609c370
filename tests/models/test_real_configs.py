"""What published configs say is understood: of each family those values that its code was published with, and some
whole configs in the form in which they lie beside the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from imp_server.models.architecture import Architecture
from imp_server.models.checkpoint_reader import CheckpointReader
from imp_server.models.feed_forwards import Dense, Experts
from imp_server.models.mixers import Attention, LatentAttention
from imp_server.models.opening import families_by_model_type
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.header import ModelHeader
from imp_server.weights.known import KNOWN
from transformers import AutoConfig, AutoModelForCausalLM

from tests.models.family_cases import CASES
from tests.models.oracle import Case, old_config

CASE_OF = {case.kind: name for name, case in reversed(CASES.items()) if case.is_saved} | {"glm4_moe": "glm4-moe air"}
STATED: dict[str, dict[str, Any]] = {
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
}
"""What all published models of a family say otherwise than its code does where a config says nothing."""
HYBRID = {"granitemoehybrid"}
"""Without a list of layers theirs keep a state."""


class AsDeep(Checkpoint):
    """Names of a tiny model's tensors, as if each further layer were like its last."""

    def __init__(self, tiny: frozenset[str], n_tiny_layers: int, n_layers: int) -> None:
        self._tiny, self._last, self._n_layers = tiny, n_tiny_layers - 1, n_layers

    def __contains__(self, name: str) -> bool:
        found = re.match(r"model\.layers\.(\d+)\.(.*)", name)
        return (f"model.layers.{min(int(found[1]), self._last)}.{found[2]}" if found else name) in self._tiny

    def names(self) -> list[str]:
        return [*self._tiny, *(f"model.layers.{index}.x" for index in range(self._n_layers))]


@cache
def published_names(name: str) -> tuple[frozenset[str], int]:
    """Of a case's tensors in published files, and the number of its layers."""
    case: Case = CASES[name]
    config = AutoConfig.for_model(case.kind, **case.full_config())
    with torch.device("meta"):
        named = getattr(transformers, case.model_class)(config) if case.model_class else None
        made: Callable[[Any], Any] = AutoModelForCausalLM.from_config
        model = made(config) if named is None else named
    tensors, _ = case.published(dict(model.state_dict()), old_config(config.to_dict()))
    return frozenset(tensors), config.num_hidden_layers


def described(config: dict[str, Any], case: str) -> Architecture:
    kind = config["model_type"]
    header = ModelHeader(Path("real"), "safetensors", kind, "real", config, {}, 0, 0, "", 0)
    reader = CheckpointReader(header, AsDeep(*published_names(case), config["num_hidden_layers"]))
    architecture = families_by_model_type()[kind].describe(reader)
    reader.finish()
    return architecture


@pytest.mark.parametrize("kind", sorted(CASE_OF.keys() - HYBRID))
def test_the_values_that_a_family_s_code_was_published_with(kind: str) -> None:
    config = json.loads(AutoConfig.for_model(kind, **STATED.get(kind, {})).to_json_string(use_diff=False))
    got = described(config, CASE_OF[kind])
    assert (got.n_layers, got.width, got.vocab_size, got.context_length) == (
        config["num_hidden_layers"],
        config["hidden_size"],
        config["vocab_size"],
        config["max_position_embeddings"],
    )
    assert {layer.mixer.n_heads for layer in got.layers} == {config["num_attention_heads"]}  # type: ignore[attr-defined]


PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "published_configs.json").read_text())
"""Each was compared with a public copy; what quantisers and other parts of a model say is left out."""
KIND_CASES = {"kimi_k2": "kimi-k2", "minicpm": "minicpm"}
"""Cases of model types that transformers saves as another."""


def case_of(config: Mapping[str, Any]) -> str:
    """The tiny model that has the tensors of this config's layers."""
    match config["model_type"]:
        case "deepseek_v2":
            return "deepseek-v2" if config.get("q_lora_rank") else "deepseek-v2 lite"
        case "exaone4":
            return "exaone4" if config.get("sliding_window") else "exaone4 small"
        case "llama4_text":
            return "llama4 whole" if config.get("interleave_moe_layer_step", 1) > 1 else "llama4"
        case "gemma4_text" if config.get("enable_moe_block"):
            return "gemma4 experts"
        case "gemma4_text":
            return "gemma4" if config["hidden_size_per_layer_input"] else "gemma4 dense"
        case kind:
            return KIND_CASES.get(kind) or CASE_OF[kind]


def published(name: str) -> tuple[Architecture, dict[str, Any]]:
    config = PUBLISHED[name]
    config = {**config, **config.get("text_config", {})}
    defaults = getattr(families_by_model_type()[config["model_type"]], "CONFIG_DEFAULTS", {})
    whole = {**defaults.get(config["model_type"], {}), **config}
    return described(whole, case_of(whole)), whole


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_understood_whole(name: str) -> None:
    got, config = published(name)
    assert (got.n_layers, got.width, got.vocab_size, got.context_length) == (
        config["num_hidden_layers"],
        config["hidden_size"],
        config["vocab_size"],
        config["max_position_embeddings"],
    )
    assert {layer.mixer.n_heads for layer in got.layers} == {config["num_attention_heads"]}  # type: ignore[attr-defined]


KNOWN_CONFIGS = {
    "smollm2": "smollm2-135m", "smollm2-1.7b": "smollm2-1.7b", "qwen2.5-0.5b": "qwen2.5-0.5b", "qwen2.5-7b": "qwen2-7b",
    "qwen3-0.6b": "qwen3-0.6b", "qwen3-1.7b": "qwen3-1.7b", "qwen3-4b": "qwen3-4b", "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b", "qwen3-32b": "qwen3-32b", "llama3.2-1b": "llama-3.2-1b", "llama3.2-3b": "llama-3.2-3b",
    "llama3.1-8b": "llama-3.1-8b", "phi4-mini": "phi-4-mini", "gemma2-2b": "gemma-2-2b", "gemma2-9b": "gemma-2-9b",
    "gemma3-1b": "gemma-3-1b", "gemma3-4b": "gemma-3-4b", "gpt-oss-20b": "gpt-oss-20b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
}  # fmt: skip
"""Of models that people fetch by a short name."""


@pytest.mark.parametrize("known", KNOWN_CONFIGS)
def test_what_is_said_of_a_known_model_s_cache(known: str) -> None:
    got, _ = published(KNOWN_CONFIGS[known])
    cached = [part for layer in got.layers for part in layer.mixer.cached()]
    assert KNOWN[known].kv_bytes == 2 * sum(part.heads * part.size for part in cached)


def test_deepseek_v3() -> None:
    got, _ = published("deepseek-r1")
    mixer, experts = got.layers[3].mixer, got.layers[3].feed_forward
    assert isinstance(mixer, LatentAttention) and isinstance(experts, Experts)
    assert [type(layer.feed_forward) for layer in got.layers].count(Dense) == 3
    assert (mixer.rank, mixer.q_rank, mixer.head_size, mixer.rope.dims, mixer.value_size) == (512, 1536, 192, 64, 128)
    # 0.1 ln 40 + 1, squared, over the root of 192
    assert mixer.scale == pytest.approx(1.3688879454113936**2 / 192**0.5)
    assert (experts.count, experts.top_k, experts.n_groups, experts.top_groups, experts.scale) == (256, 8, 8, 4, 2.5)
    assert (experts.gating, experts.selection_bias, experts.normalise_top_k) == ("sigmoid", True, True)
    assert sum(part.heads * part.size for part in mixer.cached()) == 576


def test_qwen3_30b() -> None:
    got, _ = published("qwen3-30b-a3b")
    mixer, experts = got.layers[0].mixer, got.layers[0].feed_forward
    assert isinstance(mixer, Attention) and isinstance(experts, Experts)
    assert (mixer.n_heads, mixer.n_kv_heads, mixer.head_size, mixer.qk_norm) == (32, 4, 128, "per_head")
    assert (experts.count, experts.top_k, experts.hidden, experts.normalise_top_k) == (128, 8, 768, True)


def test_llama_31_8b() -> None:
    got, _ = published("llama-3.1-8b")
    mixer = got.layers[0].mixer
    assert isinstance(mixer, Attention) and mixer.rope is not None
    assert (mixer.n_kv_heads, mixer.head_size, mixer.rope.scaling.kind) == (8, 128, "llama3")
    assert (mixer.rope.base, mixer.rope.scaling.factor, got.context_length) == (500000.0, 8.0, 131072)
