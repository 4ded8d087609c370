"""How each kind of mixer runs; `MIXERS` is the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from imp_server.backends.reference.attention import KeysAndValues, attend
from imp_server.backends.reference.batch import Batch, LayerCache
from imp_server.backends.reference.parts import LayerTensors, Tensors, norm, project
from imp_server.backends.reference.rope import RotaryTable
from imp_server.backends.reference.tiles import by_head
from imp_server.models.mixers import Attention, LatentAttention, Mixer, Temperature
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

    def __init__(self, mixer: Attention, tensors: LayerTensors, shared: Shared) -> None:
        self._mixer, self._tensors, self._shared = mixer, tensors, shared

    def __call__(self, x: torch.Tensor, batch: Batch, cache: LayerCache) -> torch.Tensor:
        mixer, t = self._mixer, self._tensors
        q, gate = self._queries(x, batch)
        if mixer.shares < 0:
            k, v = self._keys_and_values(x, batch)
            cache.write(k=k, v=v)
        out = x.new_zeros((len(x), mixer.n_heads, mixer.value_size))
        for row, span in enumerate(batch.spans()):
            kept = cache.read(row, span, mixer.chunk or mixer.window, mixer.shares)
            keys = KeysAndValues(kept.parts["k"], kept.parts["v"], kept.first)
            out[span.begin : span.end] = attend(q[span.begin : span.end], span.start, keys, mixer, t.get("sinks"))
        if gate is not None:
            out = out * torch.sigmoid(gate)
        return project(out.flatten(1), t, "o")

    def _queries(self, x: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        mixer, t = self._mixer, self._tensors
        q, gate = project(x, t, "q"), None
        if mixer.gated:
            # per head: q, then its gate
            q, gate = q.view(len(x), mixer.n_heads, 2, mixer.head_size).unbind(2)
            q = q.reshape(len(x), -1)
        q = self._placed(q, "q_norm", batch)
        return tempered(q, mixer.temperature, batch.positions), gate

    def _keys_and_values(self, x: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        mixer, t = self._mixer, self._tensors
        k = project(x, t, "k")
        v = k if mixer.keys_are_values else project(x, t, "v")
        v = v.view(len(x), mixer.n_kv_heads, mixer.value_size)
        if mixer.v_norm:
            v = self._shared.norm(v, {"ones": torch.ones(mixer.value_size)}, "ones")
        return self._placed(k, "k_norm", batch), v

    def _placed(self, x: torch.Tensor, norm_name: str, batch: Batch) -> torch.Tensor:
        """Queries or keys [n, heads * size], normalised and turned: [n, heads, size]."""
        mixer = self._mixer
        if mixer.qk_norm == "whole":
            x = self._norm(x, norm_name)
        x = x.view(len(x), -1, mixer.head_size)
        if mixer.qk_norm == "per_head":
            x = self._norm(x, norm_name)
        if mixer.rope is not None:
            x = self._shared.rotary(mixer.rope).rotate(x, batch.positions)
        return self._norm(x, norm_name) if mixer.qk_norm == "per_head_after_rope" else x

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        tensors = {name: torch.ones(x.shape[-1])} if self._mixer.bare_qk_norm else self._tensors
        return self._shared.norm(x, tensors, name)


class LatentForward:
    """Latent attention in its absorbed form: all heads share one key, `latent | turned`, whose latent is the value."""

    def __init__(self, mixer: LatentAttention, tensors: LayerTensors, shared: Shared) -> None:
        self._mixer, self._tensors, self._shared = mixer, tensors, shared
        self._over_latents = Attention(
            n_heads=mixer.n_heads,
            n_kv_heads=1,
            head_size=mixer.rank + mixer.rope.dims,
            value_head_size=mixer.rank,
            scale=mixer.scale or mixer.head_size**-0.5,
        )

    def __call__(self, x: torch.Tensor, batch: Batch, cache: LayerCache) -> torch.Tensor:
        mixer, t = self._mixer, self._tensors
        compressed = project(x, t, "kv_a")
        latent, turned = compressed[:, : mixer.rank], compressed[:, mixer.rank :]
        rotary = self._shared.rotary(mixer.rope)
        turned = rotary.rotate(turned[:, None], batch.positions)
        cache.write(latent=self._norm(latent, "kv_a_norm")[:, None], turned=turned)
        q = self._queries(x, batch)
        seen = q.new_zeros((len(x), mixer.n_heads, mixer.rank))
        for row, span in enumerate(batch.spans()):
            kept = cache.read(row, span)
            keys = KeysAndValues(
                torch.cat([kept.parts["latent"], kept.parts["turned"]], -1), kept.parts["latent"], kept.first
            )
            seen[span.begin : span.end] = attend(q[span.begin : span.end], span.start, keys, self._over_latents, None)
        return project(by_head(seen, t["v_b"]).flatten(1), t, "o")

    def _queries(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[n, heads, rank + what turns]: in the space of the latents."""
        mixer, t = self._mixer, self._tensors
        if mixer.q_rank:
            q = project(self._norm(project(x, t, "q_a"), "q_a_norm"), t, "q_b")
        else:
            q = project(x, t, "q")
        q = q.view(len(x), mixer.n_heads, -1)
        still, turned = q[..., : mixer.still_size], q[..., mixer.still_size :]
        turned = self._shared.rotary(mixer.rope).rotate(turned, batch.positions)
        q = torch.cat([by_head(still, t["k_b"]), turned], dim=-1)
        return tempered(q, mixer.temperature, batch.positions)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return norm(x, "rms", self._mixer.latent_eps, self._tensors[name], None)


def tempered(q: torch.Tensor, temperature: Temperature | None, positions: torch.Tensor) -> torch.Tensor:
    """q [n, heads, size] at `positions`."""
    if temperature is None:
        return q
    steps = torch.div(positions + temperature.offset, temperature.step, rounding_mode="floor").double()
    return q * (1 + temperature.share * torch.log1p(steps)).float()[:, None, None]


MIXERS: dict[type[Mixer], Callable[[Any, LayerTensors, Shared], MixerForward]] = {
    Attention: AttentionForward,
    LatentAttention: LatentForward,
}
"""Kind -> what runs a layer's mixer, given its description and tensors."""
