"""`Architecture` -> what of it this backend can't run, and which matrices it packs."""

from __future__ import annotations

from collections.abc import Iterator

from imp_server.backends.cuda.feed_forwards import feed_forward_kind
from imp_server.backends.cuda.mixers import mixer_kind
from imp_server.backends.cuda.workspace import Need
from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture


def refuse_what_we_lack(architecture: Architecture) -> None:
    """Raises UnsupportedModel, naming the part, for what no operation can execute."""
    for lacking in _lacks(architecture):
        raise UnsupportedModel(f"the cuda backend can't run {lacking} yet; use engine.backend=reference")


def _lacks(a: Architecture) -> Iterator[str]:
    if a.is_encoder:
        yield "encoders"
    if a.position_embeddings or a.token_types or a.embedding_norm:
        yield "learned positions and embedding norms"
    if any(group.kind not in ("full", "window") for group in a.cache_groups):
        yield "recurrent state"
    if a.streams > 1 and not all(layer.pre_norm and layer.embedding for layer in a.layers):
        yield "several streams without norms in front, or of layers that ids say nothing to"
    for layer in a.layers:
        yield from mixer_kind(layer.mixer).lacks(layer.mixer)
        yield from feed_forward_kind(layer.feed_forward).lacks(layer.feed_forward)
        if layer.laurel and (layer.parallel or not layer.pre_norm):
            yield "second ways around mixers without norms in front"


def matrix_names(architecture: Architecture) -> list[str]:
    """Canonical names of the packed matrices, in the order in which a forward reads them."""
    names = ["layer_embedding", "layer_projection"] if architecture.layer_embedding else []
    if architecture.streams > 1:
        names += ["stream_projection", "stream_merge"]
    for index, layer in enumerate(architecture.layers):
        kinds = mixer_kind(layer.mixer).matrices(layer.mixer)
        kinds += feed_forward_kind(layer.feed_forward).matrices(layer.feed_forward)
        if layer.embedding:
            kinds += ["embedding_gate", "embedding_up"]
        if layer.laurel:
            kinds += ["laurel_down", "laurel_up"]
        if architecture.streams > 1:
            kinds += ["stream_router", "stream_predict", "stream_correct"]
        names += [f"layers.{index}.{kind}" for kind in kinds]
    return [*names, "embedding", *([] if architecture.tied_head else ["head"])]


def buffer_needs(architecture: Architecture) -> list[Need]:
    """Every buffer of a forward."""
    a = architecture
    needs = [Need(name, a.width) for name in ("stream", "inner", "delta", "second")]
    for layer in a.layers:
        needs += mixer_kind(layer.mixer).needs(layer.mixer)
        needs += feed_forward_kind(layer.feed_forward).needs(layer.feed_forward, a.width)
    if a.layer_embedding:
        needs += [Need(name, a.n_layers * a.layer_embedding) for name in ("said", "projected")]
        needs.append(Need("opened", a.layer_embedding))
    if laurel := max(layer.laurel for layer in a.layers):
        needs += [Need("laurel", laurel), Need("around", a.width)]
    if (n := a.streams) > 1:
        needs += [Need(name, n * a.width) for name in ("streams", "expected")]
        needs += [Need("stream_counts", n), Need("stream_shares", n * n), Need("stream_weights", n)]
    return needs
