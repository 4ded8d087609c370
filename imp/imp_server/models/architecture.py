"""One description of a model, executed by every backend.

A family file (models/families/) maps a GGUF header or an HF config to an `Architecture` and names the
tensors; no backend knows a family. Shapes are in elements, weights are [out_features, in_features].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NormKind = Literal["rms", "rms_plus_one", "layer"]
RopeStyle = Literal["none", "neox", "interleaved"]
Activation = Literal["silu", "gelu_tanh", "gelu", "relu2", "swiglu_clamped"]
MixerKind = Literal["attention", "gated_delta", "mamba2"]
CacheKind = Literal["full", "window", "state", "none"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Context extension; the fields that a kind doesn't use stay at their defaults."""

    kind: Literal["none", "linear", "yarn", "llama3", "longrope"] = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    truncate: bool = True
    """yarn: the pairs between which it blends are whole ones."""
    frequency_factors: tuple[float, ...] = ()
    """Per pair of dimensions, dividing the frequency (GGUF tensor `rope_freqs.weight`)."""


@dataclass(frozen=True, slots=True)
class Rope:
    style: RopeStyle = "neox"
    base: float = 10000.0
    dims: int = 0
    """Leading dimensions of a head that rotate; the rest pass through."""
    scaling: RopeScaling = field(default_factory=RopeScaling)


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of a layer's feed-forward half."""

    count: int
    top_k: int
    hidden: int
    """Width of one expert."""
    shared_hidden: int = 0
    """Width of the always-active expert; 0 = none."""
    gating: Literal["softmax", "sigmoid", "softmax_of_top_k"] = "softmax"
    normalise_top_k: bool = True
    scale: float = 1.0
    shared_gate: bool = False
    selection_bias: bool = False
    n_groups: int = 1
    top_groups: int = 1


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Sizes of a gated-delta or mamba2 mixer."""

    n_heads: int
    n_key_heads: int
    key_size: int
    value_size: int
    conv_width: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; sizes in elements."""

    mixer: MixerKind = "attention"
    n_heads: int = 0
    n_kv_heads: int = 0
    head_size: int = 0
    value_head_size: int = 0
    window: int = 0
    """Positions a query sees, itself included; 0 = all."""
    causal: bool = True
    rope: Rope | None = None
    qk_norm: Literal["none", "per_head", "whole"] = "none"
    attention_scale: float = 0.0
    """Multiplies q.k; 0 = 1/sqrt(head_size)."""
    attention_softcap: float = 0.0
    sinks: bool = False
    """A learned logit per head joins the softmax denominator."""
    qkv_bias: bool = False
    out_bias: bool = False
    gated_attention: bool = False
    """The q projection carries a sigmoid gate of the same width."""
    ffn_hidden: int = 0
    ffn_gated: bool = True
    ffn_bias: bool = False
    experts: Experts | None = None
    pre_norm: bool = True
    post_norm: bool = False
    """A further norm on the output of attention and FFN before the residual is added (gemma)."""
    parallel_ffn: bool = False
    recurrent: Recurrent | None = None
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
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    position_embeddings: int = 0
    """Learned absolute positions; 0 = none."""
    token_types: int = 0
    tied_head: bool = False
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    residual_scale: float = 1.0
    pooling: Literal["none", "mean", "cls", "last"] = "none"
    """`none` = a decoder; embeddings of a decoder use `last`."""
    n_mtp_layers: int = 0

    @property
    def is_encoder(self) -> bool:
        return not self.cache_groups
