"""The shapes that a description demands of its tensors; a file that differs is refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.architecture import Architecture
from imp_server.models.mixers import Shapes


def expected_shapes(architecture: Architecture) -> Shapes:
    """Canonical name -> shape, of every tensor the description can't do without."""
    width = architecture.width
    shapes: Shapes = {"embedding": (architecture.vocab_size, width), "final_norm": (width,)}
    if not architecture.tied_head and not architecture.is_encoder:
        shapes["head"] = (architecture.vocab_size, width)
    if size := architecture.layer_embedding:
        whole = architecture.n_layers * size
        shapes["layer_embedding"] = (architecture.layer_vocab_size, whole)
        shapes |= {"layer_projection": (whole, width), "layer_projection_norm": (size,)}
    if (n := architecture.streams) > 1:
        shapes |= dict.fromkeys(("stream_projection", "stream_merge"), (n - 1, width, width))
    if architecture.head_bias:
        shapes["head.bias"] = (architecture.vocab_size,)
    if architecture.position_embeddings:
        shapes["position_embedding"] = (architecture.position_embeddings, width)
    for index, layer in enumerate(architecture.layers):
        named = layer.mixer.tensors(width) | layer.feed_forward.tensors(width)
        if layer.pre_norm:
            named["attn_norm"] = (width,)
            if not layer.parallel:
                named["ffn_norm"] = (width,)
        if layer.post_norm:
            named |= {"post_attn_norm": (width,), "post_ffn_norm": (width,)}
        if size := layer.embedding:
            named |= {"embedding_gate": (size, width), "embedding_up": (width, size), "post_embedding_norm": (width,)}
        if layer.scaled:
            named["scale"] = (1,)
        if rank := layer.laurel:
            named |= {"laurel_down": (rank, width), "laurel_up": (width, rank), "laurel_norm": (width,)}
        if n > 1:
            named |= {"stream_router": (n, width), "stream_router_norm": (width,), "stream_scale": (width,)}
            named |= {"stream_predict": (n * n, n), "stream_correct": (n, n)}
        shapes |= {f"layers.{index}.{name}": shape for name, shape in named.items()}
    if architecture.norm in ("layer", "layer_plus_one"):
        shapes |= {f"{name}.bias": shape for name, shape in list(shapes.items()) if name.endswith("norm")}
    return shapes


def check_shapes(architecture: Architecture, found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raises InvalidModel for the first missing or misshapen tensor. `found`: canonical name -> shape."""
    expected = expected_shapes(architecture)
    for name, shape in expected.items():
        if name not in found:
            raise InvalidModel(f"{where}: the tensor for '{name}' is missing")
        if found[name] != shape and found[name] != (1, *shape):
            raise InvalidModel(f"{where}: the tensor for '{name}' is {found[name]}, the header says {shape}")
    for name in found.keys() - expected.keys():
        raise UnsupportedModel(f"{where}: the tensor for '{name}' isn't one that this family has")
