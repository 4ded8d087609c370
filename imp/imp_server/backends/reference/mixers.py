"""How each kind of mixer runs; `MIXERS` is the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from imp_server.backends.reference.attention import Keys, attend
from imp_server.backends.reference.batch import Batch, LayerCache
from imp_server.backends.reference.parts import Tensors
from imp_server.backends.reference.rope import RotaryTable
from imp_server.backends.reference.tiles import linear
from imp_server.models.mixers import Attention, Mixer
from imp_server.models.rotation import Rope


class Shared:
    """What layers have in common."""

    def __init__(self, norm: Callable[[torch.Tensor, Tensors, str], torch.Tensor]) -> None:
        """`norm`: of a tensor's last axis, with the model's kind and eps, by the name of its weight."""
        self.norm = norm
        self._rotary: dict[Rope, RotaryTable] = {}

    def rotary(self, rope: Rope) -> RotaryTable:
        if rope not in self._rotary:
            self._rotary[rope] = RotaryTable(rope)
        return self._rotary[rope]


class MixerForward(Protocol):
    """x [n, width] -> [n, width]; n a multiple of 16, the last rows padding."""

    def __call__(self, x: torch.Tensor, batch: Batch, cache: LayerCache) -> torch.Tensor: ...


class AttentionForward:
    """Attention row by row over the cache."""

    def __init__(self, mixer: Attention, tensors: Tensors, shared: Shared) -> None:
        self._mixer, self._tensors, self._shared = mixer, tensors, shared

    def __call__(self, x: torch.Tensor, batch: Batch, cache: LayerCache) -> torch.Tensor:
        mixer, t = self._mixer, self._tensors
        q, k, v, gate = self._qkv(x, batch)
        cache.write(k=k, v=v)
        out = x.new_zeros((len(x), mixer.n_heads, mixer.value_size))
        for row, span in enumerate(batch.spans()):
            kept = cache.read(row, span, mixer.window)
            keys = Keys(kept.parts["k"], kept.parts["v"], kept.first)
            out[span.begin : span.end] = attend(q[span.begin : span.end], span.start, keys, mixer, t.get("sinks"))
        if gate is not None:
            out = out * torch.sigmoid(gate)
        return linear(out.flatten(1), t["o"], t.get("o.bias"))

    def _qkv(
        self, x: torch.Tensor, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        mixer, t, norm = self._mixer, self._tensors, self._shared.norm
        q, k, v = (linear(x, t[name], t.get(f"{name}.bias")) for name in ("q", "k", "v"))
        gate = None
        if mixer.gated:
            # per head: q, then its gate
            q, gate = q.view(len(x), mixer.n_heads, 2, mixer.head_size).unbind(2)
            q = q.reshape(len(x), -1)
        if mixer.qk_norm == "whole":
            q, k = norm(q, t, "q_norm"), norm(k, t, "k_norm")
        q = q.view(len(x), mixer.n_heads, mixer.head_size)
        k = k.view(len(x), mixer.n_kv_heads, mixer.head_size)
        v = v.view(len(x), mixer.n_kv_heads, mixer.value_size)
        if mixer.qk_norm == "per_head":
            q, k = norm(q, t, "q_norm"), norm(k, t, "k_norm")
        if mixer.rope is not None:
            table = self._shared.rotary(mixer.rope)
            q, k = table.rotate(q, batch.positions), table.rotate(k, batch.positions)
        if mixer.qk_norm == "per_head_after_rope":
            q, k = norm(q, t, "q_norm"), norm(k, t, "k_norm")
        if mixer.temperature:
            steps = torch.div(batch.positions, mixer.temperature.step, rounding_mode="floor").double()
            q = q * (1 + mixer.temperature.share * torch.log1p(steps)).float()[:, None, None]
        return q, k, v, gate


MIXERS: dict[type[Mixer], Callable[[Any, Tensors, Shared], MixerForward]] = {Attention: AttentionForward}
"""Kind -> what runs a layer's mixer, given its description and tensors."""
