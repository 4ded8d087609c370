"""Folders of models that see images, too: their text side is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.cli._model_facts import model_facts
from imp_server.core import UnsupportedModel
from imp_server.models.mixers import Attention
from imp_server.models.opening import open_model
from safetensors.torch import load_file, save_file

from tests.backends.driver import Driver
from tests.models.family_cases import CASES
from tests.models.oracle import IDS, error, model_of, oracle_logits, write_checkpoint

IMAGE_SIDE = ("vision_tower.layers.0.q_proj.weight", "multi_modal_projector.linear_1.weight")


def with_images(folder: Path, kind: str, before: str) -> None:
    """The folder's model as the text part of one with images."""
    tensors = load_file(folder / "model.safetensors")
    renamed = {}
    is_new = before.startswith("model.")  # as transformers saves them now
    for name, tensor in tensors.items():
        stem = name.removeprefix("model.") if is_new else name
        renamed[name if is_new and name.startswith("lm_head") else before + stem] = tensor
    beside = "model." if is_new else ""
    renamed |= {beside + name: torch.ones(4, 4) for name in IMAGE_SIDE}
    save_file(renamed, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    whole = {"model_type": kind, "text_config": text, "vision_config": {"hidden_size": 4}, "image_token_index": 3}
    (folder / "config.json").write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("name", "kind", "before"),
    [
        ("gemma3", "gemma3", "language_model."),
        ("gemma3", "gemma3", "model.language_model."),
        ("ministral3", "mistral3", "language_model."),
        ("mistral4", "mistral3", "language_model."),
        ("llama4", "llama4", "language_model."),
        ("gemma3n", "gemma3n", "model.language_model."),
        ("gemma4 dense", "gemma4", "model.language_model."),
    ],
)
def test_the_text_side_is_served(name: str, kind: str, before: str, tmp_path: Path) -> None:
    model = model_of(CASES[name])
    write_checkpoint(CASES[name], model, tmp_path, published=True)
    with_images(tmp_path, kind, before)
    got = Driver(ReferenceBackend(open_model(tmp_path))).logits(IDS[:40], 40)
    assert error(got, oracle_logits(model, IDS[:40])) < 1e-4
    assert not model_facts(tmp_path).problem


def test_gemma_3_s_config_leaves_values_to_its_code(tmp_path: Path) -> None:
    """The published one of the 4B model states six values of its text side."""
    write_checkpoint(CASES["gemma3"], model_of(CASES["gemma3"]), tmp_path, published=True)
    with_images(tmp_path, "gemma3", "language_model.")
    config = json.loads((tmp_path / "config.json").read_text())
    left_out = ("rope_theta", "rope_local_base_freq", "rms_norm_eps", "max_position_embeddings")
    config["text_config"] = {k: v for k, v in config["text_config"].items() if k not in left_out}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = open_model(tmp_path)
    mixer = source.architecture.layers[-1].mixer
    assert isinstance(mixer, Attention) and mixer.rope is not None
    assert (mixer.rope.base, source.architecture.norm_eps, source.header.context_length) == (1e6, 1e-6, 131072)


def test_an_unknown_text_side_is_unsupported_not_damaged(tmp_path: Path) -> None:
    write_checkpoint(CASES["gemma3"], model_of(CASES["gemma3"]), tmp_path, published=True)
    with_images(tmp_path, "qwen2_5_vl", "model.language_model.")
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["model_type"] = "qwen2_5_vl_text"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=r"'qwen2_5_vl_text' isn't supported"):
        open_model(tmp_path)
