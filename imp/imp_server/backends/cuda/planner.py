"""What goes where in the device's memory, said before anything is loaded."""

from __future__ import annotations

from typing import NamedTuple

from imp_server.backends.cuda.lowering import buffer_needs, matrix_names
from imp_server.backends.cuda.plain.weights import PIECE_BYTES
from imp_server.backends.cuda.rectangles import MAX_TOKENS
from imp_server.backends.cuda.weights import Rotations
from imp_server.backends.cuda.workspace import workspace_bytes
from imp_server.core import ConfigError
from imp_server.models.source import ModelSource

GRAPH_BYTES = 64 << 20
"""Set aside for captured graphs: their nodes, and what torch keeps beside them."""
SCRATCH_PIECES = 6
"""Pieces of PIECE_BYTES that the plain operations hold at once."""


class Needs(NamedTuple):
    """Bytes that a model takes beside keys and values."""

    weights: int
    activations: int
    outputs: int
    """Logits, masks and hidden states of the rows that are sampled at once."""
    scratch: int
    graphs: int
    rotation: int

    @property
    def total(self) -> int:
        return sum(self)


def needs(source: ModelSource, n_outputs: int, has_graphs: bool) -> Needs:
    """Reads no weights. `n_outputs`: rows x (1 + the longest draft)."""
    a = source.architecture
    return Needs(
        weights=sum(len(source.raw(name).data) for name in matrix_names(a)),
        activations=workspace_bytes(buffer_needs(a), MAX_TOKENS) + 4 * MAX_TOKENS * a.width,
        outputs=4 * n_outputs * (a.vocab_size + a.vocab_size // 32 + a.width),
        scratch=SCRATCH_PIECES * PIECE_BYTES,
        graphs=GRAPH_BYTES if has_graphs else 0,
        rotation=Rotations.bytes_of(sorted(a.ropes(), key=str), a.context_length),
    )


class MemoryPlan(NamedTuple):
    """Bytes. `available`: what we may use in all. `drafter`: all of a draft model but its keys and values."""

    available: int
    own: Needs
    drafter: int
    n_outputs: int

    @property
    def fixed(self) -> int:
        """All but keys and values."""
        return self.own.total + self.drafter

    @property
    def left_for_kv(self) -> int:
        return max(0, self.available - self.fixed)

    def text(self) -> str:
        parts = self.own._asdict() | {"draft model": self.drafter, "adapters": 0}
        listed = ", ".join(f"{name} {size >> 20}" for name, size in parts.items())
        return (
            f"device memory in MiB: {listed}; {self.left_for_kv >> 20} of {self.available >> 20} are left for keys and "
            f"values; n_outputs_max {self.n_outputs}"
        )


def plan(
    source: ModelSource,
    *,
    free: int,
    memory_mib: int,
    memory_fraction: float,
    n_outputs: int,
    has_graphs: bool,
    drafter: ModelSource | None = None,
) -> MemoryPlan:
    """Reads no weights. `free`: bytes on the device; `n_outputs`: rows x (1 + the longest draft).

    Raises ConfigError if the model can't fit.
    """
    available = min(free, memory_mib << 20) if memory_mib else int(free * memory_fraction)
    own = needs(source, n_outputs, has_graphs)
    beside = 0 if drafter is None else needs(drafter, n_outputs, has_graphs).total
    made = MemoryPlan(available, own, beside, n_outputs)
    if made.left_for_kv <= 0:
        without = ", or leave the draft model out" if beside else ""
        raise ConfigError(
            f"the model doesn't fit: {made.fixed >> 20} MiB are needed beside keys and values, and "
            f"{available >> 20} MiB of the device's memory may be used (weights alone take {own.weights >> 20} MiB). "
            "Raise cuda.memory_mib or cuda.memory_fraction, take a smaller quantisation, or use engine.backend=cpu"
            f"{without}"
        )
    return made
