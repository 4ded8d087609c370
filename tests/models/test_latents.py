"""Files whose latent attention has the keys' and the values' matrix in one, as they were converted at first."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.models.mixers import LatentAttention
from imp_server.models.opening import open_model
from imp_server.weights.dequantise import dequantise
from imp_server.weights.ggml_types import BY_NAME
from imp_server.weights.gguf import GgufFile

from tests.backends.driver import Driver
from tests.models.oracle import IDS, error
from tests.models.oracle_files import file_of
from tests.weights.gguf_writer import write

OLD_LENGTHS = {"key_length": "key_length_mla", "value_length": "value_length_mla"}


def whole_kv_b(new: Path, old: Path, kind: str = "F32") -> None:
    """The same model as converters wrote it before `attn_k_b` and `attn_v_b`."""
    file = GgufFile(new)
    values = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in file.metadata.items()
        if not name.endswith("_mla")
    }
    for short, long in OLD_LENGTHS.items():
        values[f"deepseek2.attention.{short}"] = file.metadata[f"deepseek2.attention.{long}"]
    tensors = {}
    for name, info in file.tensors.items():
        if "attn_v_b" in name:
            continue
        array = dequantise(info.type, file.data(name)).reshape(info.shape)
        if "attn_k_b" in name:
            values_of = name.replace("k_b", "v_b")
            v = dequantise(file.tensors[values_of].type, file.data(values_of)).reshape(file.tensors[values_of].shape)
            array = np.concatenate([array.transpose(0, 2, 1), v], axis=1).reshape(-1, array.shape[1])
            name = name.replace("k_b", "kv_b")
        kept = encoded(array, kind if "kv_b" in name else "F32")
        tensors[name] = (BY_NAME[kind].id if "kv_b" in name else 0, array.shape, kept)
    write(old, values, tensors)


def encoded(array: np.ndarray, kind: str) -> bytes:
    """Q8_0 with a scale of one for whole numbers; else float32."""
    if kind == "F32":
        return array.astype("<f4").tobytes()
    blocks = np.rint(array).astype(np.int8).reshape(-1, 32)
    scales = np.ones((len(blocks), 1), "<f2").view(np.int8)
    return np.concatenate([scales, blocks], axis=1).tobytes()


def test_one_matrix_is_the_same_as_two(tmp_path: Path) -> None:
    new, old = tmp_path / "new.gguf", tmp_path / "old.gguf"
    new.write_bytes(lzma.decompress(file_of("deepseek-v2").read_bytes()))
    whole_kv_b(new, old)
    sources = [open_model(path) for path in (new, old)]
    assert sources[0].architecture == sources[1].architecture
    logits = [Driver(ReferenceBackend(source)).logits(IDS, 40) for source in sources]
    assert error(logits[1], logits[0]) == 0


def test_a_quantised_one_is_taken_apart_by_its_values(tmp_path: Path) -> None:
    new, old = tmp_path / "new.gguf", tmp_path / "old.gguf"
    new.write_bytes(lzma.decompress(file_of("deepseek-v2").read_bytes()))
    whole_kv_b(new, old, "Q8_0")
    source = open_model(old)
    mixer = source.architecture.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    info = GgufFile(old).tensors["blk.0.attn_kv_b.weight"]
    whole = dequantise(info.type, GgufFile(old).data("blk.0.attn_kv_b.weight")).reshape(mixer.n_heads, -1, mixer.rank)
    for name, part in (
        ("k_b", whole[:, : mixer.still_size].transpose(0, 2, 1)),
        ("v_b", whole[:, mixer.still_size :]),
    ):
        raw = source.raw(f"layers.0.{name}")
        np.testing.assert_array_equal(dequantise(raw.type, raw.data).reshape(raw.shape), part)
        np.testing.assert_array_equal(source.array(f"layers.0.{name}"), part)
