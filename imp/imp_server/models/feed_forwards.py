"""Feed-forwards: the half of a layer in which each position is by itself. Cut like the mixers (mixers.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from imp_server.models.mixers import Shapes

Activation = Literal["silu", "gelu_tanh", "gelu", "relu2", "swiglu_clamped"]


@dataclass(frozen=True, slots=True)
class FeedForward(ABC):
    """What every kind says of itself."""

    @abstractmethod
    def tensors(self, width: int) -> Shapes:
        """Name below `layers.N.` -> shape, of every tensor that it can't do without."""


@dataclass(frozen=True, slots=True)
class Dense(FeedForward):
    """down(activation(gate x) * up x), or down(activation(up x)) where there is no gate."""

    hidden: int
    gated: bool = True
    bias: bool = False
    activation: Activation = "silu"
    cutoff: float | None = None
    """Of the gate's numbers only what exceeds their mean by so many standard deviations counts; None = all counts."""

    def tensors(self, width: int) -> Shapes:
        shapes: Shapes = {"up": (self.hidden, width), "down": (width, self.hidden)}
        if self.gated:
            shapes["gate"] = shapes["up"]
        if self.bias:
            shapes |= {f"{name}.bias": shape[:1] for name, shape in list(shapes.items())}
        return shapes


@dataclass(frozen=True, slots=True)
class Experts(FeedForward):
    """A router and `count` gated feed-forwards, of which each position uses `top_k`.

    They are chosen by (what the gating makes of the router's number, descending; id ascending), and summed in that
    order.
    """

    count: int
    top_k: int
    hidden: int
    """Width of one expert."""
    gating: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    """`sparse_mixer`: an expert's weight is its softmax among those that come near to it, by twice `jitter`; those that
    were chosen before it are left out."""
    normalise_top_k: bool = True
    """The weights of those that were chosen are made to add up to one."""
    scale: float = 1.0
    bias: bool = False
    """Of each expert's three matrices, and of the router."""
    selection_bias: bool = False
    """What is added to choose, and isn't part of the weights."""
    n_groups: int = 1
    top_groups: int = 1
    """Only experts of so many groups are chosen from, those of most strength."""
    group_strength: Literal["best", "best_two"] = "best_two"
    """Of a group's experts, the best one counts, or the sum of the two best."""
    shared_hidden: int = 0
    """Width of the always-active expert; 0 = none."""
    shared_gate: bool = False
    """The always-active one is multiplied with a sigmoid of its own."""
    shared_scale: float = 1.0
    """And with this."""
    weights_on_input: bool = False
    """What an expert reads is multiplied with its weight, not what it says."""
    jitter: float = 0.0
    activation: Activation = "silu"

    def tensors(self, width: int) -> Shapes:
        shapes: Shapes = {
            "router": (self.count, width),
            "experts_gate": (self.count, self.hidden, width),
            "experts_up": (self.count, self.hidden, width),
            "experts_down": (self.count, width, self.hidden),
        }
        if self.bias:
            shapes |= {f"{name}.bias": shape[:-1] for name, shape in list(shapes.items())}
        if self.selection_bias:
            shapes["selection_bias"] = (self.count,)
        if self.shared_hidden:
            shared = (self.shared_hidden, width)
            shapes |= {"shared_gate": shared, "shared_up": shared, "shared_down": shared[::-1]}
            if self.shared_gate:
                shapes["shared_router"] = (width,)
        return shapes


@dataclass(frozen=True, slots=True)
class DenseAndExperts(FeedForward):
    """Both, added: each with a norm behind it. The experts and their router have norms of their own before them, of
    what comes to the layer's second half: that of the router is without weights, then times `router_scale` /
    sqrt(width). Each expert's weight is multiplied with its own of `expert_scale`.
    """

    dense: Dense
    experts: Experts

    def tensors(self, width: int) -> Shapes:
        shapes = self.dense.tensors(width) | self.experts.tensors(width)
        norms = ("post_dense_norm", "experts_norm", "post_experts_norm")
        shapes |= dict.fromkeys((*norms, "router_scale"), (width,))
        return shapes | {"expert_scale": (self.experts.count,)}
