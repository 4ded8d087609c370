"""Files of true shapes: what a whole model takes packed, and that such a file runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.backends.cpu.packing import packed_shape
from imp_server.models.opening import open_model
from imp_server.weights.ggml_types import BY_NAME

from analysis.shaped_gemma import Beside
from analysis.shaped_models import RECIPES, SHAPES, Shape, tensors, write
from tests.backends.cpu.running import logits_in_chunks, open_backend

DENSE = Shape("llama", 2, 256, 8, 4, 32, 512, 512, True)
MIXTURE = replace(SHAPES["olmoe"], n_layers=1, width=256, n_heads=4, n_kv_heads=4, head_size=64, hidden=256, vocab=512)
OSS_KEYS = {**SHAPES["gpt-oss"].keys, "expert_feed_forward_length": 256}
OSS = replace(
    SHAPES["gpt-oss"], keys=OSS_KEYS, n_layers=1, width=256, n_heads=4, n_kv_heads=2, hidden=256, vocab=512, experts=4,
    top_k=2,
)  # fmt: skip
SMALL_GEMMA: dict[str, Any] = {"width": 256, "hidden": 512, "vocab": 512}
GEMMA_3N = replace(
    SHAPES["gemma-3n"], n_layers=4, beside=Beside(256, n_shared=2, every=2, rank=32, streams=4, sparse=1), **SMALL_GEMMA
)
GEMMA_4 = replace(
    SHAPES["gemma-4"], n_layers=4, beside=Beside(256, n_shared=2, every=2, global_head=512, wider=2), **SMALL_GEMMA
)


def bytes_of(shape: Shape, recipe: str) -> tuple[int, int]:
    """Of the matrices: in the file, and packed."""
    in_file = packed = 0
    for name, size, kind in tensors(shape, recipe):
        if len(size) > 1 and not name.endswith("bias"):
            known = BY_NAME[kind]
            in_file += int(np.prod(size)) // known.block * known.block_bytes
            packed += packed_shape(kind, size, is_split=name.startswith("token_embd")).nbytes
    return in_file, packed


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["1b", "3b", "olmoe", "gpt-oss"])
def test_a_whole_model_takes_the_bytes_of_its_file(name: str, recipe: str) -> None:
    shape = SHAPES[name]
    if shape.width % 256 and recipe not in ("MXFP4", "Q8_0"):
        return  # its width has no k-quants
    in_file, packed = bytes_of(shape, recipe)
    print(f"{name} {recipe}: {packed / 1e9:.3f} of {in_file / 1e9:.3f} GB")
    assert in_file <= packed <= 1.01 * in_file


@pytest.mark.parametrize(
    ("shape", "recipe"),
    [
        (DENSE, "Q4_K_M"),
        (DENSE, "IQ4_XS"),
        (MIXTURE, "Q4_K_M"),
        (OSS, "MXFP4"),
        (GEMMA_3N, "Q4_K_M"),
        (GEMMA_4, "Q4_K_M"),
    ],
)
def test_such_a_file_runs(tmp_path: Path, shape: Shape, recipe: str) -> None:
    path = write(tmp_path / "model.gguf", shape, recipe)
    backend = open_backend(open_model(str(path)))
    logits = logits_in_chunks(backend, np.arange(20), 20)
    assert logits.shape == (20, 512) and np.isfinite(logits).all() and logits.std() > 0.01
    _, packed = bytes_of(shape, recipe)
    assert abs(backend.weights.nbytes - packed) < 0.01 * packed
    backend.close()
