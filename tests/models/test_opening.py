"""A file becomes a description and checked tensors, or one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest
from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel
from imp_server.models.feed_forwards import Dense
from imp_server.models.mixers import Attention
from imp_server.models.opening import families_by_architecture, open_model
from imp_server.models.shapes import expected_shapes
from imp_server.weights.header import read_header

from tests.models.tiny_gguf import write_tiny_llama
from tests.real_model import smollm2


def test_tiny_llama(tmp_path: Path) -> None:
    source = open_model(write_tiny_llama(tmp_path / "m.gguf"))
    architecture = source.architecture
    assert (architecture.n_layers, architecture.width, architecture.vocab_size) == (2, 64, 288)
    assert not architecture.tied_head and architecture.cache_groups[0].kind == "full"
    layer = architecture.layers[0]
    assert isinstance(layer.mixer, Attention) and layer.feed_forward == Dense(96)
    assert (layer.mixer.n_heads, layer.mixer.n_kv_heads, layer.mixer.head_size) == (4, 2, 16)
    assert layer.mixer.rope and layer.mixer.rope.style == "interleaved"
    for name, shape in expected_shapes(architecture).items():
        assert source.array(name).shape == shape
    assert source.raw("layers.0.q").type.name == "Q4_1"
    with pytest.raises(InvalidModel, match="sinks"):
        source.raw("layers.0.sinks")


def test_rope_factors_and_tied_head(tmp_path: Path) -> None:
    architecture = open_model(write_tiny_llama(tmp_path / "m.gguf", tied=True, rope_factors=True)).architecture
    assert architecture.tied_head
    assert [len(rope.scaling.frequency_factors) for rope in architecture.ropes()] == [8]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"drop": ("blk.1.ffn_up.weight",)}, "layers.1.up"),
        ({"drop": ("token_embd.weight",)}, "token_embd"),
        ({"reshape": {"blk.0.attn_q.weight": (32, 64)}}, "layers.0.q"),
        ({"keys": {"attention.head_count_kv": 3}}, "share"),
        ({"keys": {"block_count": 3}}, "layers.2"),
        ({"keys": {"block_count": 0}}, "block_count"),
        ({"keys": {"block_count": 2**31}}, "block_count"),
        ({"keys": {"embedding_length": 128}}, "header says"),
        ({"keys": {"rope.dimension_count": 999}}, "rope.dimension_count"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        open_model(write_tiny_llama(tmp_path / "m.gguf", **fields))  # type: ignore[arg-type]


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing):
        open_model(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileMissing, match=r"config\.json"):
        open_model(tmp_path)
    (tmp_path / "model.bin").touch()
    with pytest.raises(UnsupportedModel):
        open_model(tmp_path / "model.bin")


def test_families_are_found_by_folder() -> None:
    assert families_by_architecture()["llama"].__name__.endswith("families.llama")  # type: ignore[attr-defined]


def test_the_default_model() -> None:
    source = open_model(smollm2())
    assert source.architecture.n_layers == 30 and source.architecture.tied_head
    assert source.array("layers.29.down").shape == (576, 1536)


def test_a_folder_of_gguf_files_is_no_model_but_says_what_it_holds(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "m.gguf")
    with pytest.raises(UnsupportedModel, match=r"holds m\.gguf: give the path of the file"):
        read_header(tmp_path)
