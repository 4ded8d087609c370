"""How each kind of feed-forward runs as operations; `FEED_FORWARDS` is the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from imp_server.backends.cuda.operations import NormForm, Operations, PackedMatrix, RouterForm
from imp_server.backends.cuda.weights import DeviceWeights
from imp_server.backends.cuda.workspace import Need, Workspace
from imp_server.core import UnsupportedModel
from imp_server.models.feed_forwards import Dense, DenseAndExperts, Experts, FeedForward

Tensor = torch.Tensor


class FeedForwardInput(NamedTuple):
    """What comes to a layer's second half, [T, width] each: as its norm made it, and as it was before."""

    normed: Tensor
    raw: Tensor


class FeedForwardRun(Protocol):
    """One layer's feed-forward."""

    def __call__(self, entering: FeedForwardInput, work: Workspace, ops: Operations, out: Tensor) -> None:
        """To `out` [T, width]."""
        ...


class FeedForwardKind(Protocol):
    def lacks(self, feed_forward: Any) -> Iterator[str]:
        """What can't be executed of it, in words."""
        ...

    def matrices(self, feed_forward: Any) -> list[str]:
        """Names of its packed matrices, in the order in which a forward reads them."""
        ...

    def needs(self, feed_forward: Any, width: int) -> Iterator[Need]:
        """Its buffers, those of every layer (forward.py) aside."""
        ...

    def lower(self, feed_forward: Any, weights: DeviceWeights, prefix: str) -> FeedForwardRun: ...


def _pair(weights: DeviceWeights, names: tuple[str, str]) -> tuple[Tensor, Tensor] | None:
    found = [weights.vector(f"{name}.bias") for name in names]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


@dataclass(frozen=True, slots=True)
class DenseRun:
    kind: Dense
    gate: PackedMatrix | None
    up: PackedMatrix
    down: PackedMatrix
    biases: tuple[Tensor, Tensor] | None
    up_bias: Tensor | None
    down_bias: Tensor | None

    def __call__(self, entering: FeedForwardInput, work: Workspace, ops: Operations, out: Tensor) -> None:
        x, kind = entering.normed, self.kind
        hidden = work.take("hidden", len(x), kind.hidden)
        if self.gate is not None and kind.cutoff is not None:
            self._cut_off(x, self.gate, kind.cutoff, hidden, work, ops)
        elif self.gate is not None:
            ops.gated_project(x, self.gate, self.up, self.biases, kind.activation, hidden)
        else:
            ops.project(x, self.up, self.up_bias, hidden)
            ops.activate(hidden, kind.activation, None, hidden)
        ops.project(hidden, self.down, self.down_bias, out)

    def _cut_off(
        self, x: Tensor, gate: PackedMatrix, cutoff: float, hidden: Tensor, work: Workspace, ops: Operations
    ) -> None:
        """Of the gate's numbers the largest count."""
        opened = work.take("gates", *hidden.shape)
        biases = self.biases or (None, None)
        ops.project(x, gate, biases[0], opened)
        ops.cut_off(opened, cutoff)
        ops.project(x, self.up, biases[1], hidden)
        ops.activate(opened, self.kind.activation, hidden, hidden)


class DenseKind:
    def lacks(self, feed_forward: Dense) -> Iterator[str]:
        if feed_forward.activation == "swiglu_clamped" and not feed_forward.gated:
            yield f"the activation {feed_forward.activation} without a gate"
        if feed_forward.cutoff is not None and feed_forward.activation == "swiglu_clamped":
            yield f"cut gates with the activation {feed_forward.activation}"

    def matrices(self, feed_forward: Dense) -> list[str]:
        return [*(["gate"] if feed_forward.gated else []), "up", "down"]

    def needs(self, feed_forward: Dense, width: int) -> Iterator[Need]:
        yield Need("hidden", feed_forward.hidden)
        if feed_forward.cutoff is not None:
            yield Need("gates", feed_forward.hidden)

    def lower(self, feed_forward: Dense, weights: DeviceWeights, prefix: str) -> DenseRun:
        return DenseRun(
            feed_forward,
            weights.matrix(f"{prefix}gate") if feed_forward.gated else None,
            weights.matrix(f"{prefix}up"),
            weights.matrix(f"{prefix}down"),
            _pair(weights, (f"{prefix}gate", f"{prefix}up")),
            weights.vector(f"{prefix}up.bias"),
            weights.vector(f"{prefix}down.bias"),
        )


@dataclass(frozen=True, slots=True)
class SharedExpert:
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    router: PackedMatrix | None
    """One row."""


@dataclass(frozen=True, slots=True)
class ExpertsRun:
    kind: Experts
    form: RouterForm
    router: PackedMatrix
    router_bias: Tensor | None
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    biases: tuple[Tensor, Tensor] | None
    down_bias: Tensor | None
    shared: SharedExpert | None

    def __call__(self, entering: FeedForwardInput, work: Workspace, ops: Operations, out: Tensor) -> None:
        self.mix(entering.normed, self.routed(entering.normed, work, ops), work, ops, out)

    def routed(self, x: Tensor, work: Workspace, ops: Operations) -> tuple[Tensor, Tensor]:
        """Ids and weights of the experts."""
        n, kind = len(x), self.kind
        logits = work.take("router", n, kind.count)
        ops.project(x, self.router, self.router_bias, logits)
        chosen, weights = work.take("chosen", n, kind.top_k), work.take("shares", n, kind.top_k)
        ops.route(logits, self.form, chosen, weights)
        return chosen, weights

    def mix(self, x: Tensor, routed: tuple[Tensor, Tensor], work: Workspace, ops: Operations, out: Tensor) -> None:
        n, kind, (chosen, weights) = len(x), self.kind, routed
        hidden = work.take("experts_hidden", n, kind.top_k, kind.hidden)
        on_input = weights if kind.weights_on_input else None
        ops.experts_gated(x, chosen, on_input, self.gate, self.up, self.biases, kind.activation, hidden)
        ops.experts_down(hidden, chosen, None if kind.weights_on_input else weights, self.down, self.down_bias, out)
        if self.shared is not None:
            self._add_shared(self.shared, x, work, ops, out)

    def _add_shared(self, shared: SharedExpert, x: Tensor, work: Workspace, ops: Operations, out: Tensor) -> None:
        n, kind = len(x), self.kind
        hidden = work.take("hidden", n, kind.shared_hidden)
        ops.gated_project(x, shared.gate, shared.up, None, kind.activation, hidden)
        said = work.take("beside", n, x.shape[1])
        ops.project(hidden, shared.down, None, said)
        opened = None
        if shared.router is not None:
            opened = work.take("router", n, 1)
            ops.project(x, shared.router, None, opened)
        ops.add(out, said, kind.shared_scale, opened)


class ExpertsKind:
    def lacks(self, feed_forward: Experts) -> Iterator[str]:
        return iter(())

    def matrices(self, feed_forward: Experts) -> list[str]:
        names = ["router", "experts_gate", "experts_up", "experts_down"]
        if feed_forward.shared_hidden:
            names += ["shared_gate", "shared_up", "shared_down"]
        return names + (["shared_router"] if feed_forward.shared_gate else [])

    def needs(self, feed_forward: Experts, width: int) -> Iterator[Need]:
        yield Need("router", feed_forward.count)
        yield Need("chosen", feed_forward.top_k, torch.int32)
        yield Need("shares", feed_forward.top_k)
        yield Need("experts_hidden", feed_forward.top_k * feed_forward.hidden)
        if feed_forward.shared_hidden:
            yield Need("hidden", feed_forward.shared_hidden)
            yield Need("beside", width)

    def lower(
        self, feed_forward: Experts, weights: DeviceWeights, prefix: str, expert_scale: Tensor | None = None
    ) -> ExpertsRun:
        kind = feed_forward
        form = RouterForm(
            count=kind.count,
            top_k=kind.top_k,
            gating=kind.gating,
            normalise=kind.normalise_top_k,
            scale=kind.scale,
            selection_bias=weights.required(f"{prefix}selection_bias") if kind.selection_bias else None,
            expert_scale=expert_scale,
            n_groups=kind.n_groups,
            top_groups=kind.top_groups,
            group_strength=kind.group_strength,
            jitter=kind.jitter,
        )
        shared = None
        if kind.shared_hidden:
            shared = SharedExpert(
                weights.matrix(f"{prefix}shared_gate"),
                weights.matrix(f"{prefix}shared_up"),
                weights.matrix(f"{prefix}shared_down"),
                weights.matrix(f"{prefix}shared_router") if kind.shared_gate else None,
            )
        gate, up, down = (weights.matrix(f"{prefix}experts_{name}") for name in ("gate", "up", "down"))
        return ExpertsRun(
            kind,
            form,
            weights.matrix(f"{prefix}router"),
            weights.vector(f"{prefix}router.bias"),
            gate,
            up,
            down,
            _pair(weights, (f"{prefix}experts_gate", f"{prefix}experts_up")),
            weights.vector(f"{prefix}experts_down.bias"),
            shared,
        )


@dataclass(frozen=True, slots=True)
class DenseAndExpertsRun:
    dense: DenseRun
    experts: ExpertsRun
    post_dense: NormForm
    router_norm: NormForm
    experts_norm: NormForm
    post_experts: NormForm

    def __call__(self, entering: FeedForwardInput, work: Workspace, ops: Operations, out: Tensor) -> None:
        n, width = entering.raw.shape
        self.dense(entering, work, ops, out)
        ops.norm(out, self.post_dense, out)
        inner, said = work.take("mixture_in", n, width), work.take("mixture_out", n, width)
        ops.norm(entering.raw, self.router_norm, inner)
        routed = self.experts.routed(inner, work, ops)
        ops.norm(entering.raw, self.experts_norm, inner)
        self.experts.mix(inner, routed, work, ops, said)
        ops.norm(said, self.post_experts, said)
        ops.add(out, said, 1.0)


class DenseAndExpertsKind:
    def lacks(self, feed_forward: DenseAndExperts) -> Iterator[str]:
        yield from DenseKind().lacks(feed_forward.dense)
        yield from ExpertsKind().lacks(feed_forward.experts)

    def matrices(self, feed_forward: DenseAndExperts) -> list[str]:
        return DenseKind().matrices(feed_forward.dense) + ExpertsKind().matrices(feed_forward.experts)

    def needs(self, feed_forward: DenseAndExperts, width: int) -> Iterator[Need]:
        yield from DenseKind().needs(feed_forward.dense, width)
        yield from ExpertsKind().needs(feed_forward.experts, width)
        yield Need("mixture_in", width)
        yield Need("mixture_out", width)

    def lower(self, feed_forward: DenseAndExperts, weights: DeviceWeights, prefix: str) -> DenseAndExpertsRun:
        a = weights.architecture
        # Twice normalised without weights: the second factor is the router's own.
        router_norm = NormForm(
            a.norm_eps,
            weights.required(f"{prefix}router_scale") * a.width**-0.5,
            centred=a.norm.startswith("layer"),
        )
        return DenseAndExpertsRun(
            DenseKind().lower(feed_forward.dense, weights, prefix),
            ExpertsKind().lower(feed_forward.experts, weights, prefix, weights.required(f"{prefix}expert_scale")),
            weights.norm(f"{prefix}post_dense_norm"),
            router_norm,
            weights.norm(f"{prefix}experts_norm"),
            weights.norm(f"{prefix}post_experts_norm"),
        )


FEED_FORWARDS: dict[type[FeedForward], FeedForwardKind] = {
    Dense: DenseKind(),
    Experts: ExpertsKind(),
    DenseAndExperts: DenseAndExpertsKind(),
}


def feed_forward_kind(feed_forward: FeedForward) -> FeedForwardKind:
    """Raises UnsupportedModel for a kind that there isn't."""
    kind = type(feed_forward)
    if kind not in FEED_FORWARDS:
        raise UnsupportedModel(f"the cuda backend can't run {kind.__name__} layers yet; use engine.backend=reference")
    return FEED_FORWARDS[kind]
