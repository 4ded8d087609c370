"""How each kind of feed-forward is lowered; `FEED_FORWARDS` is the table, kernels/cpu/engine/plan.h has the plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from imp_server.backends.cpu import abi
from imp_server.backends.cpu.plan_tensors import PlanTensors
from imp_server.core import UnsupportedModel
from imp_server.models.feed_forwards import Dense, DenseAndExperts, Experts, FeedForward

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu2": 3, "swiglu_clamped": 4}
_GATINGS = {"softmax": 0, "sigmoid": 1, "sparse_mixer": 2}


class FeedForwardLowering(Protocol):
    """`kind`: FeedForwardKind in plan.h."""

    kind: int

    def lacks(self, feed_forward: Any) -> Iterator[str]:
        """What the kernels can't execute of it, in words."""
        ...

    def matrices(self, feed_forward: Any) -> list[str]:
        """Names of its packed matrices, in the order in which a forward reads them."""
        ...

    def lower(self, model: PlanTensors, plan: abi.LayerPlan, feed_forward: Any, prefix: str) -> None: ...


class DenseLowering:
    """Dense -> DensePlan."""

    kind = 0

    def lacks(self, feed_forward: Dense) -> Iterator[str]:
        if feed_forward.activation == "swiglu_clamped" and not feed_forward.gated:
            yield f"the activation {feed_forward.activation} without a gate"
        if feed_forward.cutoff is not None and (feed_forward.bias or not feed_forward.gated):
            yield "a cut-off of gates with biases"

    def matrices(self, feed_forward: Dense) -> list[str]:
        return [*(["gate"] if feed_forward.gated else []), "up", "down"]

    def lower(self, model: PlanTensors, plan: abi.LayerPlan, feed_forward: Dense, prefix: str) -> None:
        own = plan.dense
        for name in self.matrices(feed_forward):
            setattr(own, name, model.matrix(prefix + name))
            setattr(own, f"{name}_bias", model.vector(f"{prefix}{name}.bias"))
        own.hidden, own.activation = feed_forward.hidden, ACTIVATIONS[feed_forward.activation]
        own.is_sparse, own.cutoff = feed_forward.cutoff is not None, feed_forward.cutoff or 0.0


class ExpertsLowering:
    """Experts -> ExpertsPlan."""

    kind = 1

    def lacks(self, feed_forward: Experts) -> Iterator[str]:
        if feed_forward.hidden % 16:
            yield f"experts of {feed_forward.hidden} (multiples of 16)"

    def matrices(self, feed_forward: Experts) -> list[str]:
        names = ["router", "experts_gate", "experts_up", "experts_down"]
        if feed_forward.shared_hidden:
            names += ["shared_gate", "shared_up", "shared_down"]
        return names + (["shared_router"] if feed_forward.shared_gate else [])

    def lower(self, model: PlanTensors, plan: abi.LayerPlan, feed_forward: Experts, prefix: str) -> None:
        own = plan.experts
        own.router, own.router_bias = model.matrix(f"{prefix}router"), model.vector(f"{prefix}router.bias")
        own.selection_bias = model.vector(f"{prefix}selection_bias")
        for name in ("gate", "up", "down"):
            setattr(own, name, model.matrix(f"{prefix}experts_{name}"))
            setattr(own, f"{name}_bias", model.vector(f"{prefix}experts_{name}.bias"))
            if feed_forward.shared_hidden:
                setattr(own.shared, name, model.matrix(f"{prefix}shared_{name}"))
        own.activation = own.shared.activation = ACTIVATIONS[feed_forward.activation]
        own.shared.hidden = feed_forward.shared_hidden
        if feed_forward.shared_gate:
            own.shared_router = model.matrix(f"{prefix}shared_router")
        own.count, own.top_k, own.hidden = feed_forward.count, feed_forward.top_k, feed_forward.hidden
        own.n_groups, own.top_groups = feed_forward.n_groups, feed_forward.top_groups
        own.best_two = feed_forward.group_strength == "best_two"
        own.gating = _GATINGS[feed_forward.gating]
        own.normalise = feed_forward.normalise_top_k
        own.scale, own.shared_scale = feed_forward.scale, feed_forward.shared_scale
        own.weights_on_input, own.jitter = feed_forward.weights_on_input, feed_forward.jitter


class DenseAndExpertsLowering:
    """DenseAndExperts -> DensePlan and ExpertsPlan."""

    kind = 2

    def __init__(self) -> None:
        self._dense, self._experts = DenseLowering(), ExpertsLowering()

    def lacks(self, feed_forward: DenseAndExperts) -> Iterator[str]:
        yield from self._dense.lacks(feed_forward.dense)
        yield from self._experts.lacks(feed_forward.experts)
        if feed_forward.dense.bias:
            yield "a dense half with biases beside experts"

    def matrices(self, feed_forward: DenseAndExperts) -> list[str]:
        return self._dense.matrices(feed_forward.dense) + self._experts.matrices(feed_forward.experts)

    def lower(self, model: PlanTensors, plan: abi.LayerPlan, feed_forward: DenseAndExperts, prefix: str) -> None:
        self._dense.lower(model, plan, feed_forward.dense, prefix)
        self._experts.lower(model, plan, feed_forward.experts, prefix)
        own = plan.experts
        own.norm, own.post_norm = model.norm(f"{prefix}experts_norm"), model.norm(f"{prefix}post_experts_norm")
        own.post_dense_norm = model.norm(f"{prefix}post_dense_norm")
        own.router_norm = model.scaled(f"{prefix}router_scale", model.architecture.width**-0.5)
        own.expert_scale = model.vector(f"{prefix}expert_scale")


FEED_FORWARDS: dict[type[FeedForward], FeedForwardLowering] = {
    Dense: DenseLowering(),
    Experts: ExpertsLowering(),
    DenseAndExperts: DenseAndExpertsLowering(),
}


def feed_forward_lowering(feed_forward: FeedForward) -> FeedForwardLowering:
    """Raises UnsupportedModel for a kind that the kernels lack."""
    kind = type(feed_forward)
    if kind not in FEED_FORWARDS:
        raise UnsupportedModel(f"the cpu backend can't run {kind.__name__} layers yet; use engine.backend=reference")
    return FEED_FORWARDS[kind]
