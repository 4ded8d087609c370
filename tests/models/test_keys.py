"""Every key that GGUF's documentation and llama.cpp's loader know, and config.json's: honoured or refused by name."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from imp_server.core import UnsupportedModel, UserFault
from imp_server.models.architecture import Architecture
from imp_server.models.config_keys import DECODER_CONFIG_KEYS
from imp_server.models.gguf_keys import DECODER_KEYS
from imp_server.models.opening import open_model
from imp_server.models.rotation import frequencies, magnitude
from imp_server.text.sampling_defaults import default_sampling
from imp_server.vocab.from_gguf import TOKENIZER_KEYS
from imp_server.vocab.load import tokenizer_of
from imp_server.weights.header import read_header
from transformers import LlamaConfig, MistralConfig

from tests.models.tiny_gguf import write_tiny_llama
from tests.models.tiny_hf import write_tiny_folder

DOCUMENTED = ["rope.scale_linear", "use_parallel_residual", "tensor_data_layout"]
"""Of the documentation; the package's list doesn't have the first any more."""
NEWER = [
    "activation.situ_beta", "activation.situ_linear_beta", "adapters.count", "adapters.lora_rank",
    "adapters.router_gain", "adapters.token_ids_activate", "adapters.token_ids_substitute",
    "attention.compress_ratios", "attention.compress_rope_freq_base", "attention.indexer.block_size",
    "attention.indexer.kpool", "attention.indexer.kpool_select_tail", "attention.indexer.local_blocks",
    "attention.indexer.types", "attention.key_length_mla_swa", "attention.kv_lora_rank_swa",
    "attention.output_group_count", "attention.output_lora_rank", "attention.recurrent_layers",
    "attention.rope_pattern", "attention.value_length_mla_swa", "attention.value_scale", "attn_res.block_size",
    "block_size", "classifier.pooling_type", "conv_group_size", "conv_kernel_size", "deepstack_mapping",
    "dense_3_feat_in", "dense_3_feat_out", "expert_latent_length", "has_confidence_head", "hash_layer_count",
    "hidden_activation", "hrm.h_cycles", "hrm.l_cycles", "hrm.layers_per_stack", "hrm.prefix_lm",
    "hyper_connection.count", "hyper_connection.epsilon", "hyper_connection.low_rank", "hyper_connection.magnitude",
    "hyper_connection.sinkhorn_iterations", "kda.gate_lower_bound", "kda.safe_gate", "norm_before_fc",
    "norm_before_residual", "num_loops", "ple.conv_kernel", "ple.eos_token_id", "ple.head_offsets",
    "ple.head_vocab_sizes", "ple.heads_per_ngram", "ple.image_token_id", "ple.layer_multipliers", "ple.layers",
    "ple.ngram_size", "sample_from_anchor", "selector_rank", "selector_top_k", "skip_loop_final_norm",
    "target_hidden_size", "target_layers",
]  # fmt: skip
"""That llama.cpp's loader knows and the package's list may not, yet."""
STRANGE: dict[str, Any] = {
    "attention.head_count": 8, "attention.head_count_kv": 1, "attention.key_length": 32, "embedding_length": 128,
    "pooling_type": 1, "rope.scaling.type": "yarn", "hidden_activation": "gelu", "use_parallel_residual": True,
    "tensor_data_layout": "Meta AI original pth", "attention.causal": False, "rope.scaling.finetuned": True,
    "expert_weights_norm": False, "expert_count": 4,
}  # fmt: skip
"""Values that no file of ours has."""
BESIDE: dict[str, dict[str, Any]] = {
    "rope.scaling.type": {"rope.scaling.factor": 2.0},
    "rope.scaling.original_context_length": {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
    "rope.scaling.yarn_beta_fast": {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
    "rope.scaling.yarn_beta_slow": {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
    "rope.scaling.yarn_ext_factor": {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
}
"""Without which they say nothing."""


def keys_of(cls: type) -> Iterator[str]:
    for name, value in vars(cls).items():
        if isinstance(value, str) and not name.startswith("__"):
            yield value
        elif isinstance(value, type):
            yield from keys_of(value)


ALL = sorted(set(keys_of(gguf.constants.Keys)))
HYPERPARAMETERS = sorted(
    {key.removeprefix("{arch}.").replace("{dense}", "dense_2") for key in ALL if key.startswith("{arch}.")}
    | {*DOCUMENTED, *NEWER}
)
TOKENIZER = sorted(key.removeprefix("tokenizer.ggml.") for key in ALL if key.startswith("tokenizer.ggml."))


def strange(key: str) -> Any:
    floats = ("scale", "factor", "eps", "beta", "bias", "freq", "multip", "bound", "gain", "magnitude", "beta")
    return STRANGE.get(key, 4.0 if any(part in key for part in floats) else 3)


def test_the_lists_are_there() -> None:
    assert len(HYPERPARAMETERS) > 150 and len(TOKENIZER) > 25


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    return described(tmp_path_factory.mktemp("models") / "plain.gguf")


@pytest.mark.parametrize("key", HYPERPARAMETERS)
def test_a_hyperparameter(key: str, tmp_path: Path, plain: Architecture) -> None:
    base = described(tmp_path / "base.gguf", **BESIDE[key]) if key in BESIDE else plain
    error, changed = None, base
    try:
        changed = described(tmp_path / "m.gguf", **{**BESIDE.get(key, {}), key: strange(key)})
    except UserFault as refused:
        error = refused.message
    if error is None:
        assert key in DECODER_KEYS.inert or changed != base, f"{key} has no effect and nobody says so"
    else:
        tensors = (
            "the header says",
            "layers.2",
            "the tensor for 'layers.0.router' is missing",
            "expert_used_count",
            "dimension_count",
        )
        assert f"llama.{key}'" in error or any(words in error for words in tensors), error


def described(path: Path, **keys: Any) -> Architecture:
    return open_model(write_tiny_llama(path, keys=keys)).architecture


def test_what_refuses_a_value_takes_the_neutral_one(tmp_path: Path, plain: Architecture) -> None:
    keys: dict[str, Any] = {key: values[0] for key, values in DECODER_KEYS.neutral.items() if values}
    keys |= {"ssm.conv_kernel": 0, "nextn_predict_layers": 0, "expert_count": 0, "expert_used_count": 0}
    assert described(tmp_path / "m.gguf", **keys) == plain


def test_a_key_that_nobody_knows_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        described(tmp_path / "m.gguf", colour="blue")
    assert "m.gguf: keys that aren't known and have no effect: llama.colour" in caplog.text


def test_lists_of_one_value_are_that_value(tmp_path: Path, plain: Architecture) -> None:
    per_layer = described(tmp_path / "m.gguf", **{"attention.head_count_kv": [2, 2], "feed_forward_length": [96, 96]})
    assert per_layer == plain
    with pytest.raises(UserFault, match=r"llama\.attention\.head_count_kv"):
        described(tmp_path / "n.gguf", **{"attention.head_count_kv": [2, 4]})


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, 1.0),
        ({"rope.scale_linear": 0.0}, 1.0),
    ],
)
@pytest.mark.parametrize("factors", [False, True])
def test_rope_scaling_of_today_and_before(keys: dict[str, Any], factor: float, factors: bool, tmp_path: Path) -> None:
    def rope(name: str, **keys: Any) -> Any:
        made = open_model(write_tiny_llama(tmp_path / name, keys=keys, rope_factors=factors))
        return made.architecture.layers[0].mixer.ropes()[0]

    plain, scaled = rope("plain.gguf"), rope("scaled.gguf", **keys)
    np.testing.assert_allclose(frequencies(scaled) * factor, frequencies(plain), rtol=1e-12)
    assert magnitude(scaled.scaling) == 1.0


@pytest.mark.parametrize(
    ("key", "value"), [("rope.scaling.type", "longrope"), ("rope.scaling.factor", -1.0), ("rope.scale_linear", "x")]
)
def test_absurd_scaling_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UserFault, match=r"rope\.scal"):
        described(tmp_path / "m.gguf", **{key: value})


@pytest.mark.parametrize("key", TOKENIZER)
def test_a_tokenizer_key_is_known(key: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        TOKENIZER_KEYS.check({key: 1}, "'tokenizer.ggml.")
    assert not caplog.records


def test_gap_tokens_are_those_that_the_file_names(tmp_path: Path) -> None:
    ids = {"prefix_token_id": 65, "fim_suf_token_id": 66, "middle_token_id": 67, "fim_mid_token_id": 68}
    keys = {f"tokenizer.ggml.{name}": i for name, i in ids.items()}
    tokenizer = tokenizer_of(read_header(write_tiny_llama(tmp_path / "m.gguf", keys=keys)))
    assert tokenizer.gap_ids == (65, 66, 68)


@pytest.mark.parametrize(
    ("key", "value"), [("general.type", "adapter"), ("general.type", "mmproj"), ("general.tensor_extra.name", "x")]
)
def test_files_of_other_kinds_are_refused(key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=key):
        read_header(write_tiny_llama(tmp_path / "m.gguf", keys={key: value}))


def test_sampling_that_the_file_recommends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {
        "temp": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.25, "penalty_repeat": 1.5, "penalty_last_n": 64,
        "xtc_probability": 0.5, "xtc_threshold": 0.25, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.5,
        "sequence": "k;p",
    }  # fmt: skip
    names = {key for key in ALL if key.startswith("general.sampling.")}
    assert {f"general.sampling.{name}" for name in keys} == names
    path = write_tiny_llama(tmp_path / "m.gguf", keys={f"general.sampling.{name}": v for name, v in keys.items()})
    with caplog.at_level(logging.WARNING):
        values = default_sampling("llama", read_header(path).generation)
    assert "general.sampling.sequence" in caplog.text
    assert values == {
        "temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.25, "typical_p": 1.0, "repetition_penalty": 1.5,
        "repeat_last_n": 64, "xtc_probability": 0.5, "xtc_threshold": 0.25, "mirostat": 2, "mirostat_tau": 4.0,
        "mirostat_eta": 0.5,
    }  # fmt: skip
    assert default_sampling("", {"repetition_penalty": 2, "repeat_last_n": 0})["repetition_penalty"] == 1.0
    assert default_sampling("", {"repeat_last_n": -1})["repeat_last_n"] == 0


CONFIG_VALUES: dict[str, Any] = {
    "hidden_act": "relu", "rope_parameters": {"rope_type": "spiral"}, "attention_bias": True, "mlp_bias": True,
    "tie_word_embeddings": True, "sliding_window": 8, "rms_norm_eps": 0.5, "layer_types": ["sliding_attention"] * 2,
    "head_dim": 16, "num_attention_heads": 6, "num_key_value_heads": 1,
}  # fmt: skip


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_keys_of_config_json(model_type: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those that transformers knows of a family, and those of its neighbours."""
    write_tiny_folder(tmp_path)
    config = {**json.loads((tmp_path / "config.json").read_text()), "model_type": model_type}
    kind = {"llama": LlamaConfig, "mistral": MistralConfig}[model_type]
    known = {*kind().to_dict(), *DECODER_CONFIG_KEYS.neutral, "layer_types", "partial_rotary_factor"}
    known -= {"model_type", "architectures"}
    assert len(known) > 40

    def described(**changes: Any) -> Any:
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        return open_model(tmp_path).architecture

    plain = described()
    for key in sorted(known):
        value = CONFIG_VALUES.get(key, 0.5 if "factor" in key else 3)
        error, changed = None, plain
        try:
            changed = described(**{key: value})
        except UserFault as refused:
            error = refused.message
        if error is None:
            assert changed != plain or key in DECODER_CONFIG_KEYS.inert, f"{key} has no effect and nobody says so"
        else:
            assert key in error or "rope scaling" in error or "header says" in error or "layers.2" in error, error
    with caplog.at_level(logging.WARNING):
        assert described(colour="blue") == plain
    assert "have no effect: colour" in caplog.text
    neutral = {key: values[0] for key, values in DECODER_CONFIG_KEYS.neutral.items() if values}
    assert described(**neutral, **dict.fromkeys(DECODER_CONFIG_KEYS.neutral.keys() - neutral)) == replace(plain)
