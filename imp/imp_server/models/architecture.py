"""One description of a model, executed by every backend.

A family file (models/families/) maps a GGUF header or an HF config to an `Architecture` and names the
tensors; no backend knows a family. Shapes are in elements, weights are [out_features, in_features].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from imp_server.models.feed_forwards import FeedForward
from imp_server.models.mixers import CacheKind, Mixer
from imp_server.models.rotation import Rope

NormKind = Literal["rms", "rms_plus_one", "layer", "layer_plus_one", "layer_without_bias"]
"""`plus_one`: a weight w multiplies with 1 + w."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer and a feed-forward, each added to the residual, and the norms about them."""

    mixer: Mixer
    feed_forward: FeedForward
    pre_norm: bool = True
    post_norm: bool = False
    """A further norm on the output of either half before the residual is added (gemma)."""
    parallel: bool = False
    """Both halves read what the first norm made, and are added together."""
    embedding: int = 0
    """Size of what each id says to this layer alone, behind the feed-forward; 0 = nothing."""
    laurel: int = 0
    """Numbers through which a second way leads around the mixer, of what enters that; 0 = there is none. Both ways are
    added, over the root of two.
    """
    scaled: bool = False
    """What comes out is multiplied with a number of the layer's own."""
    cache_group: int = 0


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with one kind of cache; each group has its own pool and block tables."""

    kind: CacheKind
    layers: tuple[int, ...]
    window: int = 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """The whole description of a model that backends execute."""

    family: str
    n_layers: int
    width: int
    vocab_size: int
    context_length: int
    """Positions the model was trained for."""
    layers: tuple[Layer, ...]
    cache_groups: tuple[CacheGroup, ...]
    norm: NormKind = "rms"
    norm_eps: float = 1e-5
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    layer_vocab_size: int = 0
    """Ids that say something of their own to layers; others say what id 0 does. 0 = none does."""
    streams: int = 1
    """Vectors that a position has between layers. With several (AltUp) a layer predicts each of all, works on the
    first, and corrects all by what it changed.
    """
    position_embeddings: int = 0
    """Learned absolute positions; 0 = none."""
    token_types: int = 0
    tied_head: bool = False
    head_bias: bool = False
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    residual_scale: float = 1.0
    pooling: Literal["none", "mean", "cls", "last"] = "none"
    """`none` = a decoder that doesn't say: its embeddings are those of the last position."""

    @property
    def is_encoder(self) -> bool:
        return not self.cache_groups

    @property
    def layer_embedding(self) -> int:
        """Size of what each id says to each layer."""
        return self.layers[0].embedding

    def ropes(self) -> set[Rope]:
        return {rope for layer in self.layers for rope in layer.mixer.ropes()}


def grouped(layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], tuple[CacheGroup, ...]]:
    """The layers with their cache groups: one group for each kind and window, in the order in which they come."""
    members: dict[tuple[CacheKind, int], list[int]] = {}
    for index, layer in enumerate(layers):
        members.setdefault(layer.mixer.cache, []).append(index)
    places = {cache: group for group, cache in enumerate(members)}
    placed = tuple(replace(layer, cache_group=places[layer.mixer.cache]) for layer in layers)
    return placed, tuple(CacheGroup(kind, tuple(indices), window) for (kind, window), indices in members.items())
