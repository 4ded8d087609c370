"""A model of random weights for any Architecture."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from imp_server.models.architecture import Architecture, Layer, grouped
from imp_server.models.feed_forwards import Dense
from imp_server.models.mixers import Attention
from imp_server.models.rotation import Rope
from imp_server.models.shapes import expected_shapes
from imp_server.models.source import RawTensor
from imp_server.models.tensor_names import Places
from imp_server.weights.ggml_types import BY_NAME
from imp_server.weights.header import ModelHeader


def tiny(layer: Layer | None = None, *, n_layers: int = 2, **fields: Any) -> Architecture:
    """A decoder 64 wide with 97 ids; `fields` override the Architecture's."""
    layers, groups = grouped([layer or BASE] * n_layers)
    return Architecture(
        **{
            "family": "tiny",
            "n_layers": n_layers,
            "width": 64,
            "vocab_size": 97,
            "context_length": 1024,
            "layers": layers,
            "cache_groups": groups,
            **fields,
        }
    )


BASE = Layer(Attention(n_heads=4, n_kv_heads=2, head_size=16, rope=Rope(dims=16)), Dense(96))


def altered(layer: Layer, **fields: Any) -> Layer:
    """`fields`: of its mixer, of its feed-forward, or its own; those of a mixer come first."""
    parts: dict[str, Any] = {"mixer": layer.mixer, "feed_forward": layer.feed_forward}
    for name, value in fields.items():
        part = next((part for part in parts if hasattr(parts[part], name) and name not in parts), None)
        if part is None:
            parts[name] = value
        else:
            parts[part] = replace(parts[part], **{name: value})
    return replace(layer, **parts)


def mixed_groups() -> Architecture:
    """One full and one window layer, as in gemma."""
    layers, groups = grouped([BASE, altered(BASE, window=20)])
    return tiny(layers=layers, cache_groups=groups)


class ArraySource:
    """Tensors drawn from a seed."""

    def __init__(self, architecture: Architecture, seed: int = 0) -> None:
        self.architecture = architecture
        self.header = ModelHeader(Path("tiny"), "gguf", "tiny", "tiny", {}, {}, 1024, 0, "F32", 0)
        self.places: Places = {}
        rng = np.random.default_rng(seed)
        self.tensors: dict[str, np.ndarray[Any, Any]] = {}
        for name, shape in self._shapes().items():
            values = rng.standard_normal(shape).astype(np.float32)
            if len(shape) > 1:
                values *= 1.5 * shape[-1] ** -0.5
            elif "norm" in name and not name.endswith(".bias"):
                values = 1 + 0.2 * values
            self.tensors[name] = values

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        a = self.architecture
        shapes = expected_shapes(a)
        if a.norm == "layer":
            shapes |= {f"{n}.bias": s for n, s in list(shapes.items()) if "norm" in n}
        if a.embedding_norm:
            shapes["embedding_norm"] = (a.width,)
        if a.token_types:
            shapes["token_types"] = (a.token_types, a.width)
        if a.is_encoder and not any(layer.pre_norm for layer in a.layers):
            for i in range(a.n_layers):
                shapes |= {f"layers.{i}.attn_norm": (a.width,), f"layers.{i}.ffn_norm": (a.width,)}
            del shapes["final_norm"]
        return shapes

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def array(self, name: str) -> np.ndarray[Any, Any]:
        return self.tensors[name]

    def raw(self, name: str) -> RawTensor:
        values = self.tensors[name]
        return RawTensor(BY_NAME["F32"], values.shape, values.view(np.uint8).reshape(-1))
