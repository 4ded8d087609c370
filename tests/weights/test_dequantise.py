"""Dequantised values equal those of the gguf package, on random bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from imp_server.core import UnsupportedModel
from imp_server.weights.dequantise import dequantise
from imp_server.weights.ggml_types import BY_NAME

SIMPLE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4"]
TWO_LEVEL = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]


@pytest.mark.parametrize("name", SIMPLE + TWO_LEVEL)
def test_equal_on_random_bytes(name: str) -> None:
    kind = BY_NAME[name]
    data = np.random.default_rng(0).integers(0, 256, 4096 * kind.block_bytes, dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantise(kind, data)
        theirs = gguf.quants.dequantize(data.reshape(64, -1), gguf.GGMLQuantizationType[name]).reshape(-1)
    assert ours.dtype == np.float32 and ours.shape == (4096 * kind.block,)
    np.testing.assert_array_equal(ours, theirs.astype(np.float32))


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="IQ1_S"):
        dequantise(BY_NAME["IQ1_S"], np.zeros(50, dtype=np.uint8))
