"""The shapes that a description demands of its tensors; a file that differs is refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from imp_server.core import InvalidModel
from imp_server.models.architecture import Architecture, Layer

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(architecture: Architecture) -> Shapes:
    """Canonical name -> shape, of every tensor the description can't do without."""
    width = architecture.width
    shapes: Shapes = {"embedding": (architecture.vocab_size, width), "final_norm": (width,)}
    if not architecture.tied_head and not architecture.is_encoder:
        shapes["head"] = (architecture.vocab_size, width)
    if architecture.position_embeddings:
        shapes["position_embedding"] = (architecture.position_embeddings, width)
    for index, layer in enumerate(architecture.layers):
        named = _attention(layer, width) if layer.mixer == "attention" else {}
        named |= _ffn(layer, width)
        if layer.pre_norm:
            named["attn_norm"] = (width,)
            if not layer.parallel_ffn:
                named["ffn_norm"] = (width,)
        if layer.post_norm:
            named |= {"post_attn_norm": (width,), "post_ffn_norm": (width,)}
        shapes |= {f"layers.{index}.{name}": shape for name, shape in named.items()}
    return shapes


def check_shapes(architecture: Architecture, found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raises InvalidModel for the first missing or misshapen tensor. `found`: canonical name -> shape."""
    for name, shape in expected_shapes(architecture).items():
        if name not in found:
            raise InvalidModel(f"{where}: the tensor for '{name}' is missing")
        if found[name] != shape:
            raise InvalidModel(f"{where}: the tensor for '{name}' is {found[name]}, the header says {shape}")


def _attention(layer: Layer, width: int) -> Shapes:
    q = layer.n_heads * layer.head_size
    shapes: Shapes = {
        "q": (2 * q if layer.gated_attention else q, width),
        "k": (layer.n_kv_heads * layer.head_size, width),
        "v": (layer.n_kv_heads * layer.value_head_size, width),
        "o": (width, layer.n_heads * layer.value_head_size),
    }
    if layer.qkv_bias:
        shapes |= {f"{name}.bias": shapes[name][:1] for name in ("q", "k", "v")}
    if layer.out_bias:
        shapes["o.bias"] = (width,)
    if layer.qk_norm == "per_head":
        shapes |= {"q_norm": (layer.head_size,), "k_norm": (layer.head_size,)}
    elif layer.qk_norm == "whole":
        shapes |= {"q_norm": (q,), "k_norm": shapes["k"][:1]}
    if layer.sinks:
        shapes["sinks"] = (layer.n_heads,)
    return shapes


def _ffn(layer: Layer, width: int) -> Shapes:
    shapes: Shapes = {}
    if layer.ffn_hidden:
        shapes |= {"up": (layer.ffn_hidden, width), "down": (width, layer.ffn_hidden)}
        if layer.ffn_gated:
            shapes["gate"] = shapes["up"]
        if layer.ffn_bias:
            shapes |= {f"{name}.bias": shape[:1] for name, shape in list(shapes.items())}
    if experts := layer.experts:
        shapes |= {
            "router": (experts.count, width),
            "experts_gate": (experts.count, experts.hidden, width),
            "experts_up": (experts.count, experts.hidden, width),
            "experts_down": (experts.count, width, experts.hidden),
        }
        if experts.shared_hidden:
            shared = (experts.shared_hidden, width)
            shapes |= {"shared_gate": shared, "shared_up": shared, "shared_down": shared[::-1]}
    return shapes
