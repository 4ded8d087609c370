"""Where activations lie: one buffer for each name, as long as the widest step, the same for every step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Need:
    """A buffer [tokens, features]."""

    name: str
    features: int
    dtype: torch.dtype = torch.float32


class Workspace:
    """Owner of the buffers."""

    def __init__(self, needs: Iterable[Need], n_tokens: int, device: torch.device) -> None:
        self.n_tokens = n_tokens
        self._buffers = {
            need.name: torch.zeros(n_tokens * need.features, dtype=need.dtype, device=device)
            for need in widest(needs).values()
        }

    def take(self, name: str, n_tokens: int, *shape: int) -> Tensor:
        """[n_tokens, *shape], contiguous, with what was there before."""
        n = n_tokens
        for size in shape:
            n *= size
        return self._buffers[name][:n].view(n_tokens, *shape)


def widest(needs: Iterable[Need]) -> dict[str, Need]:
    found: dict[str, Need] = {}
    for need in needs:
        known = found.get(need.name)
        if known is None or known.features < need.features:
            found[need.name] = need
    return found


def workspace_bytes(needs: Iterable[Need], n_tokens: int) -> int:
    return sum(need.features * need.dtype.itemsize * n_tokens for need in widest(needs).values())
