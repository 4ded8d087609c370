"""Small models with random weights, one for each part of the description that the cpu backend executes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from imp_server.models.architecture import Architecture, Layer, grouped
from imp_server.models.feed_forwards import Dense, Experts
from imp_server.models.mixers import Attention, LatentAttention, Temperature
from imp_server.models.rotation import Rope
from imp_server.models.shapes import expected_shapes
from imp_server.models.source import RawTensor
from imp_server.models.tensor_names import Places
from imp_server.weights.dequantise import dequantise
from imp_server.weights.ggml_types import BY_NAME
from imp_server.weights.header import ModelHeader

from tests.backends.array_source import altered

# Where a block's f16 scales lie, to give random bytes a sane magnitude.
_HALF_FIELDS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
# Largest code times largest inner scale.
_MAGNITUDE = {
    "Q8_0": 127,
    "Q6_K": 4000,
    "Q4_K": 945,
    "Q5_K": 1900,
    "Q2_K": 45,
    "Q3_K": 130,
    "IQ4_NL": 113,
    "IQ4_XS": 3500,
}


def random_tensor(type_name: str, shape: tuple[int, ...], rng: np.random.Generator, size: float = 0.1) -> RawTensor:
    """Random bytes of a type, scaled so that weights are about `size`."""
    kind = BY_NAME[type_name]
    n_in = shape[-1]
    if kind.block == 1:
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(size)
        if type_name == "F16":
            data = values.astype(np.float16).view(np.uint8)
        elif type_name == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = values.view(np.uint8)
        return RawTensor(kind, shape, data.reshape(-1))
    n_rows = int(np.prod(shape[:-1]))
    blocks = rng.integers(0, 256, (n_rows, n_in // kind.block, kind.block_bytes), dtype=np.uint8)
    for at in _HALF_FIELDS.get(type_name, ()):
        scale = rng.uniform(0.5, 1.5, blocks.shape[:2]) * size / _MAGNITUDE.get(type_name, 15)
        blocks[:, :, at : at + 2] = scale.astype(np.float16)[:, :, None].view(np.uint8)
    if type_name == "MXFP4":
        blocks[:, :, 0] = rng.integers(118, 124, blocks.shape[:2])
    return RawTensor(kind, shape, blocks.reshape(-1))


class SyntheticSource:
    """A ModelSource held in memory. `types`: tensor type by the last part of the canonical name."""

    def __init__(self, architecture: Architecture, types: dict[str, str], seed: int = 0, path: Path = Path("none")):
        self.architecture = architecture
        self.places: Places = {}
        rng = np.random.default_rng(seed)
        self._tensors: dict[str, RawTensor] = {}
        for name, shape in expected_shapes(architecture).items():
            last = name.rpartition(".")[2] if not name.endswith(".bias") else "bias"
            if len(shape) == 1 or name.endswith(".bias"):
                values = rng.standard_normal(shape).astype(np.float32) * np.float32(0.2)
                if "norm" in name and architecture.norm != "rms_plus_one":
                    values += np.float32(1)
                tensor = RawTensor(BY_NAME["F32"], shape, values.view(np.uint8))
            else:
                tensor = random_tensor(types.get(last, types.get("", "Q4_1")), shape, rng)
            self._tensors[name] = tensor
        self.header = ModelHeader(
            path, "gguf", "synthetic", "synthetic", {}, {}, architecture.context_length, 0, "", path_bytes(path)
        )

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def raw(self, name: str) -> RawTensor:
        return self._tensors[name]

    def array(self, name: str) -> npt.NDArray[np.float32]:
        raw = self._tensors[name]
        return dequantise(raw.type, raw.data).reshape(raw.shape)


def path_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@dataclass(frozen=True)
class Variant:
    name: str
    architecture: Architecture
    types: dict[str, str]


def architecture(
    width: int = 128, n_layers: int = 2, vocab: int = 331, windows: tuple[int, ...] = (), **changes: Any
) -> Architecture:
    """`changes`: of the layers (array_source.altered), or of the Architecture. `windows`: one for each layer."""
    layer = Layer(Attention(n_heads=4, n_kv_heads=2, head_size=32, rope=Rope("neox", 1e4, 32)), Dense(256))
    of_layers = [layer, layer.mixer, layer.feed_forward]
    layer = altered(layer, **{k: changes.pop(k) for k in list(changes) if any(hasattr(o, k) for o in of_layers)})
    layers, groups = grouped([altered(layer, window=w) if w else layer for w in windows or (0,) * n_layers])
    return replace(Architecture("synthetic", n_layers, width, vocab, 4096, layers, groups, tied_head=True), **changes)


VARIANTS = [
    Variant("llama", architecture(rope=Rope("interleaved", 1e4, 32)), {"": "Q4_1", "embedding": "Q8_0"}),
    Variant(
        "qwen3",
        architecture(width=256, qk_norm="per_head", head_size=64, tied_head=False),
        {"": "Q4_K", "head": "Q6_K", "embedding": "Q6_K", "v": "Q6_K", "o": "Q5_K"},
    ),
    Variant(
        "qwen2",
        architecture(qkv_bias=True, n_kv_heads=1, tied_head=False),
        {"": "Q5_0", "embedding": "F16", "head": "F16"},
    ),
    Variant(
        "gemma",
        architecture(
            norm="rms_plus_one",
            activation="gelu_tanh",
            post_norm=True,
            head_size=256,
            n_heads=2,
            n_kv_heads=1,
            embedding_scale=11.3,
            softcap=20.0,
            logit_softcap=30.0,
            windows=(0, 40),
            rope=Rope("neox", 1e4, 256),
            scale=0.05,
        ),
        {"": "Q4_0", "embedding": "BF16"},
    ),
    Variant(
        "sinks",
        architecture(
            sinks=True,
            out_bias=True,
            bias=True,
            windows=(70, 0),
            n_kv_heads=4,
            head_size=80,
            rope=Rope("neox", 1e4, 64),
        ),
        {"": "MXFP4", "o": "Q8_0", "q": "F32"},
    ),
    Variant(
        "layer norm",
        architecture(
            norm="layer", feed_forward=Dense(256, gated=False, activation="relu2"), qk_norm="whole", rope=None
        ),
        {"": "IQ4_NL", "down": "F16"},
    ),
    Variant(
        "odd sizes",
        architecture(
            width=96,
            n_heads=7,
            n_kv_heads=7,
            head_size=48,
            hidden=160,
            vocab_size=17,
            rope=Rope("neox", 1e4, 16),
            activation="gelu",
        ),
        {"": "Q5_1", "o": "BF16", "embedding": "F32"},
    ),
    Variant(
        "scaled",
        architecture(
            width=256,
            n_heads=8,
            n_kv_heads=1,
            head_size=128,
            hidden=256,
            residual_scale=0.22,
            logit_scale=0.125,
        ),
        {"": "Q2_K", "down": "Q3_K", "up": "IQ4_XS", "gate": "IQ4_XS"},
    ),
    Variant(
        "side by side",
        architecture(
            norm="layer_without_bias",
            parallel=True,
            qk_norm="per_head_after_rope",
            temperature=Temperature(0.3, 20),
            logit_scale=0.25,
        ),
        {"": "Q4_1", "embedding": "Q8_0", "v": "BF16"},
    ),
    Variant(
        "experts",
        architecture(
            feed_forward=Experts(5, 2, 96, gating="softmax", normalise_top_k=False, shared_hidden=64, shared_gate=True)
        ),
        {"": "Q4_1", "embedding": "Q8_0", "experts_down": "Q8_0", "router": "F32", "shared_router": "F32"},
    ),
    Variant(
        "experts with biases",
        architecture(
            post_norm=True,
            feed_forward=Experts(7, 3, 64, bias=True, activation="swiglu_clamped", scale=1.5),
        ),
        {"": "MXFP4", "embedding": "Q8_0", "router": "BF16"},
    ),
    Variant(
        "experts by sigmoid",
        architecture(feed_forward=Experts(9, 4, 32, gating="sigmoid", selection_bias=True)),
        {"": "F16", "router": "F32"},
    ),
    Variant(
        "experts in groups",
        architecture(
            feed_forward=Experts(
                12, 3, 32, gating="sigmoid", selection_bias=True, n_groups=4, top_groups=2, shared_hidden=32, scale=1.7
            )
        ),
        {"": "Q8_0", "router": "F32"},
    ),
    Variant(
        "softmax in groups",
        architecture(
            feed_forward=Experts(8, 3, 32, normalise_top_k=False, n_groups=4, top_groups=2, group_strength="best")
        ),
        {"": "Q8_0", "router": "F32"},
    ),
    Variant(
        "latents",
        architecture(mixer=LatentAttention(5, 64, 32, 48, Rope("interleaved", 1e4, 32), q_rank=96)),
        {"": "Q8_0", "k_b": "F32", "v_b": "Q4_0", "o": "F16"},
    ),
    Variant(
        "latents of whole queries",
        architecture(
            mixer=LatentAttention(
                3, 272, 40, 16, Rope("neox", 1e4, 64), bias=True, scale=0.2, temperature=Temperature(0.3, 20)
            )
        ),
        {"": "BF16", "q": "Q4_1"},
    ),
]
