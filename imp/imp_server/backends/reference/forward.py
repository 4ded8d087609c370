"""One forward of a ragged batch: the Architecture, executed field by field."""

from __future__ import annotations

import math

import torch

from imp_server.backends.host_queue import PlainStep
from imp_server.backends.reference import streams
from imp_server.backends.reference.adapters import AdapterTensors
from imp_server.backends.reference.batch import Batch, LayerCache
from imp_server.backends.reference.feed_forwards import FEED_FORWARDS, Entering
from imp_server.backends.reference.mixers import MIXERS, MixerForward, Shared
from imp_server.backends.reference.parts import LayerTensors, Tensors, activated, norm
from imp_server.backends.reference.pools import Pools
from imp_server.backends.reference.tiles import linear, pad_rows
from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, Layer


class Forward:
    """The model as torch tensors. Reads and writes the pools it is handed; keeps nothing between steps."""

    def __init__(self, architecture: Architecture, tensors: Tensors, adapters: AdapterTensors) -> None:
        self.architecture = architecture
        self._adapters = adapters
        self._tensors = tensors
        shared = Shared(self._norm)
        self._layers = [
            _Layer(self, layer, _of_layer(tensors, i), shared) for i, layer in enumerate(architecture.layers)
        ]

    def hidden(self, step: PlainStep, pools: Pools | None) -> torch.Tensor:
        """Hidden states after the final norm [n_ids, width]."""
        batch = Batch(step)
        for index, layer in enumerate(self._layers):
            layer.tensors.added = self._adapters.of_layer(index, batch)
        x = self._embed(batch)
        said = self._said_to_layers(x, batch)
        has_streams = self.architecture.streams > 1
        if has_streams:
            x = streams.spread(x, self._tensors)
        for index, layer in enumerate(self._layers):
            cache = LayerCache(pools, index, layer.description.cache_group, batch)
            run = layer.forward_streams if has_streams else layer.forward
            x = run(x, batch, cache, said[:, index])
        if has_streams:
            x = streams.merged(x, self._tensors)
        if "final_norm" in self._tensors:
            x = self._norm(x, self._tensors, "final_norm")
        return x[: batch.n]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, width] -> raw logits [n, vocab]."""
        a = self.architecture
        head = self._tensors["embedding" if a.tied_head else "head"]
        out = linear(pad_rows(hidden), head, self._tensors.get("head.bias"))[: len(hidden)]
        if a.logit_scale != 1.0:
            out = out * a.logit_scale
        if a.logit_softcap:
            out = a.logit_softcap * torch.tanh(out / a.logit_softcap)
        return out

    def _embed(self, batch: Batch) -> torch.Tensor:
        a, t = self.architecture, self._tensors
        x = t["embedding"][batch.ids] * a.embedding_scale
        if batch.embeddings is not None:
            tokens, vectors = (torch.from_numpy(part) for part in batch.embeddings)
            x[tokens.long()] = vectors
        if a.position_embeddings:
            x = x + t["position_embedding"][batch.positions.clamp(max=a.position_embeddings - 1)]
        if a.token_types:
            x = x + t["token_types"][0]
        return self._norm(x, t, "embedding_norm") if a.embedding_norm else x

    def _said_to_layers(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[n, layers, size]: what each id says to each layer, and what its embedding does."""
        a, t = self.architecture, self._tensors
        shape = (len(x), a.n_layers, a.layer_embedding)
        if not a.layer_embedding:
            return x.new_zeros(shape)
        ids = torch.where(batch.ids < a.layer_vocab_size, batch.ids, 0)
        own = t["layer_embedding"][ids].view(shape) * math.sqrt(a.layer_embedding)
        projected = (linear(x, t["layer_projection"]) / math.sqrt(a.width)).view(shape)
        return (self._norm(projected, t, "layer_projection_norm") + own) * math.sqrt(0.5)

    def _norm(self, x: torch.Tensor, t: Tensors, name: str) -> torch.Tensor:
        a = self.architecture
        return norm(x, a.norm, a.norm_eps, t[name], t.get(f"{name}.bias"))


class _Layer:
    """A mixer and a feed-forward with the norms and sums about them."""

    def __init__(self, forward: Forward, description: Layer, tensors: LayerTensors, shared: Shared) -> None:
        self.description = description
        self.tensors, self._norm = tensors, shared.norm
        self._residual_scale = forward.architecture.residual_scale
        kinds = type(description.mixer), type(description.feed_forward)
        if kinds[0] not in MIXERS or kinds[1] not in FEED_FORWARDS:
            lacking = next(kind.__name__ for kind in kinds if kind not in MIXERS and kind not in FEED_FORWARDS)
            raise UnsupportedModel(f"the reference backend has no {lacking} layers")
        self._mix: MixerForward = MIXERS[kinds[0]](description.mixer, tensors, shared)
        self._feed = FEED_FORWARDS[kinds[1]]

    def forward(self, x: torch.Tensor, batch: Batch, cache: LayerCache, said: torch.Tensor) -> torch.Tensor:
        """`said` [n, size]: Layer.embedding of the ids."""
        x = self._halves(x, batch, cache)
        if self.description.embedding:
            x = x + self._heard(x, said) * self._residual_scale
        return x * self.tensors["scale"] if self.description.scaled else x

    def forward_streams(self, x: torch.Tensor, batch: Batch, cache: LayerCache, said: torch.Tensor) -> torch.Tensor:
        """x [streams, n, width]: the layer works on the first, and all but that hear what ids say."""
        t = self.tensors
        expected = streams.predicted(x, t, self._norm)
        x = streams.corrected(expected, self._halves(expected[0], batch, cache), t, self._norm)
        if self.description.embedding:
            x = torch.cat([x[:1], x[1:] + self._heard(x[0] * t["stream_scale"], said)])
        return x * t["scale"] if self.description.scaled else x

    def _heard(self, x: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        t = self.tensors
        gate = activated("gelu_tanh", linear(x, t["embedding_gate"]))
        return self._norm(linear(gate * said, t["embedding_up"]), t, "post_embedding_norm")

    def _around(self, inner: torch.Tensor) -> torch.Tensor:
        t = self.tensors
        return inner + self._norm(linear(linear(inner, t["laurel_down"]), t["laurel_up"]), t, "laurel_norm")

    def _halves(self, x: torch.Tensor, batch: Batch, cache: LayerCache) -> torch.Tensor:
        layer, t, scale = self.description, self.tensors, self._residual_scale
        inner = self._norm(x, t, "attn_norm") if layer.pre_norm else x
        out = self._mix(inner, batch, cache)
        if layer.post_norm:
            out = self._norm(out, t, "post_attn_norm")
        if layer.parallel:
            return x + (out + self._feed_forward(inner, x)) * scale
        x = x + out * scale
        if layer.laurel:
            x = (x + self._around(inner)) * math.sqrt(0.5)
        norm_after_sum = not layer.pre_norm and not layer.post_norm
        if norm_after_sum:
            x = self._norm(x, t, "attn_norm")
        inner = self._norm(x, t, "ffn_norm") if layer.pre_norm else x
        out = self._feed_forward(inner, x)
        if layer.post_norm:
            out = self._norm(out, t, "post_ffn_norm")
        x = x + out * scale
        return self._norm(x, t, "ffn_norm") if norm_after_sum else x

    def _feed_forward(self, normed: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return self._feed(Entering(normed, raw, self._norm), self.tensors, self.description.feed_forward)


def _of_layer(tensors: Tensors, index: int) -> LayerTensors:
    prefix = f"layers.{index}."
    return LayerTensors({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})
