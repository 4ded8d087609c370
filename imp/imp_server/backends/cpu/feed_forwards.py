"""How each kind of feed-forward is lowered; `FEED_FORWARDS` is the table, kernels/cpu/engine/plan.h has the plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from imp_server.backends.cpu import abi
from imp_server.core import UnsupportedModel
from imp_server.models.feed_forwards import Dense, FeedForward

if TYPE_CHECKING:
    from imp_server.backends.cpu.lowering import LoweredModel

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu2": 3}
_NAMES = {"Experts": "mixtures of experts"}


class FeedForwardLowering(Protocol):
    """`kind`: FeedForwardKind in plan.h."""

    kind: int

    def lacks(self, feed_forward: Any) -> Iterator[str]:
        """What the kernels can't execute of it, in words."""
        ...

    def matrices(self, feed_forward: Any) -> list[str]:
        """Names of its packed matrices, in the order in which a forward reads them."""
        ...

    def lower(self, model: LoweredModel, plan: abi.LayerPlan, feed_forward: Any, prefix: str) -> None: ...


class DenseLowering:
    """Dense -> DensePlan."""

    kind = 0

    def lacks(self, feed_forward: Dense) -> Iterator[str]:
        if feed_forward.activation not in ACTIVATIONS:
            yield f"the activation {feed_forward.activation}"

    def matrices(self, feed_forward: Dense) -> list[str]:
        return [*(["gate"] if feed_forward.gated else []), "up", "down"]

    def lower(self, model: LoweredModel, plan: abi.LayerPlan, feed_forward: Dense, prefix: str) -> None:
        own = plan.dense
        for name in self.matrices(feed_forward):
            setattr(own, name, model.matrix(prefix + name))
            setattr(own, f"{name}_bias", model.vector(f"{prefix}{name}.bias"))
        own.hidden, own.activation = feed_forward.hidden, ACTIVATIONS[feed_forward.activation]


FEED_FORWARDS: dict[type[FeedForward], FeedForwardLowering] = {Dense: DenseLowering()}


def feed_forward_lowering(feed_forward: FeedForward) -> FeedForwardLowering:
    """Raises UnsupportedModel for a kind that the kernels lack."""
    kind = type(feed_forward)
    if kind not in FEED_FORWARDS:
        words = _NAMES.get(kind.__name__, f"{kind.__name__} layers")
        raise UnsupportedModel(f"the cpu backend can't run {words} yet; use engine.backend=reference")
    return FEED_FORWARDS[kind]
