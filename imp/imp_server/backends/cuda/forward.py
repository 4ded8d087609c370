"""One rectangle through the model: the Architecture as a sequence of operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from imp_server.backends.base import Embeddings
from imp_server.backends.cuda.feed_forwards import FeedForwardInput, FeedForwardRun, feed_forward_kind
from imp_server.backends.cuda.mixers import MixerPlace, MixerRun, mixer_kind
from imp_server.backends.cuda.operations import LayerKv, NormForm, Operations, PackedMatrix, Rows, SlotState
from imp_server.backends.cuda.streams import Streams, StreamsOfLayer
from imp_server.backends.cuda.weights import DeviceWeights, Rotations
from imp_server.backends.cuda.workspace import Workspace
from imp_server.models.architecture import Architecture, Layer
from imp_server.models.mixers import Attention

Tensor = torch.Tensor

_LAYER_NORMS = (
    *("attn_norm", "post_attn_norm", "ffn_norm", "post_ffn_norm"),
    *("post_embedding_norm", "laurel_norm", "stream_router_norm"),
)


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A mixer and a feed-forward with the norms and sums about them."""

    layer: Layer
    mixer: MixerRun
    feed_forward: FeedForwardRun
    norms: dict[str, NormForm]
    factor: float
    """Of what comes out; 1 = it isn't multiplied."""
    embedding: tuple[PackedMatrix, PackedMatrix] | None
    """Gate and way up of what ids say to this layer."""
    laurel: tuple[PackedMatrix, PackedMatrix] | None
    """Down and up of the second way around the mixer."""
    streams: StreamsOfLayer | None


class DeviceForward:
    """Owner of the lowered layers. Keeps nothing between steps."""

    def __init__(
        self, weights: DeviceWeights, kv: Sequence[LayerKv], rotations: Rotations, ops: Operations, work: Workspace
    ) -> None:
        """`kv`: what each layer sees."""
        self.architecture: Architecture = weights.architecture
        self._ops, self._work = ops, work
        a = self.architecture
        self._layers = [_lowered(weights, index, kv[index], rotations) for index in range(a.n_layers)]
        self._embedding = weights.matrix("embedding")
        self._head = self._embedding if a.tied_head else weights.matrix("head")
        self._head_bias = weights.vector("head.bias")
        self._final_norm = weights.norm("final_norm")
        self._streams = Streams.lowered(weights) if a.streams > 1 else None
        self._said: tuple[PackedMatrix, PackedMatrix, NormForm] | None = None
        if a.layer_embedding:
            # What is projected is divided by sqrt(width) before its norm: the same as a larger epsilon.
            norm = weights.norm("layer_projection_norm", a.norm_eps * a.width)
            self._said = (weights.matrix("layer_embedding"), weights.matrix("layer_projection"), norm)

    def hidden(self, ids: Tensor, rows: Rows, slots: SlotState, given: Embeddings | None, out: Tensor) -> None:
        """out [T, width]: hidden states after the final norm. `given`: its `tokens` count in the rectangle."""
        a, ops, n = self.architecture, self._ops, rows.n_tokens
        stream = self._work.take("stream", n, a.width)
        ops.embed(ids, rows, slots, self._embedding, a.embedding_scale, stream)
        if given is not None:
            tokens, vectors = (torch.from_numpy(part).to(stream.device) for part in given)
            stream[tokens.long()] = vectors
        said = self._say(ids, rows, slots, stream)
        if self._streams is not None and said is not None:
            self._run_streams(self._streams, stream, said, rows)
            ops.norm(stream, self._final_norm, out)
            return
        delta: Tensor | None = None
        for index, run in enumerate(self._layers):
            delta = self._run_layer(run, stream, delta, rows, None if said is None else said[:, index])
        ops.add_norm(stream, delta, a.residual_scale, self._final_norm, out)

    def logits(self, hidden: Tensor, out: Tensor) -> None:
        """hidden [M, width] -> out [M, vocab]."""
        a = self.architecture
        self._ops.head_logits(hidden, self._head, self._head_bias, a.logit_scale, a.logit_softcap, out)

    def best(self, hidden: Tensor, out: Tensor) -> None:
        """out int32 [M]."""
        a = self.architecture
        self._ops.head_argmax(hidden, self._head, self._head_bias, a.logit_scale, a.logit_softcap, out)

    def _say(self, ids: Tensor, rows: Rows, slots: SlotState, stream: Tensor) -> Tensor | None:
        """[T, layers, size]: what each id says to each layer, and what its embedding does."""
        if self._said is None:
            return None
        a, ops, n = self.architecture, self._ops, rows.n_tokens
        table, matrix, norm = self._said
        size = a.layer_embedding
        said, projected = (self._work.take(name, n, a.n_layers * size) for name in ("said", "projected"))
        ops.embed(ids, rows, slots, table, math.sqrt(size) * math.sqrt(0.5), said)
        ops.project(stream, matrix, None, projected)
        each = projected.view(n * a.n_layers, size)
        ops.norm(each, norm, each)
        ops.add(said, projected, math.sqrt(0.5))
        return said.view(n, a.n_layers, size)

    def _run_streams(self, streams: Streams, stream: Tensor, said: Tensor, rows: Rows) -> None:
        """All layers where a position has several streams; `stream` is the first, and in the end what they came to."""
        ops, work, (n, width) = self._ops, self._work, stream.shape
        count = self.architecture.streams
        own, expected = (work.take(name, n, count * width).view(count, n, width) for name in ("streams", "expected"))
        streams.spread(stream, own, ops)
        for index, run in enumerate(self._layers):
            assert run.streams is not None
            run.streams.predict(own, expected, work, ops)
            own.copy_(expected)
            stream.copy_(expected[0])
            delta = self._halves(run, stream, None, rows)
            if delta is not None:
                ops.add(stream, delta, self.architecture.residual_scale)
            run.streams.correct(own, stream, work, ops)
            ops.times(own[0], run.streams.scale, stream)
            heard = self._heard(run, stream, said[:, index])
            for other in own[1:]:
                ops.add(other, heard, 1.0)
            if run.factor != 1.0:
                ops.scale(own, run.factor)
        streams.merge(own, stream, work.take("delta", n, width), ops)

    def _run_layer(
        self, run: LayerRun, stream: Tensor, delta: Tensor | None, rows: Rows, said: Tensor | None
    ) -> Tensor | None:
        """`delta`: what the layer before has yet to add. What this one has."""
        return self._end(run, stream, self._halves(run, stream, delta, rows), said)

    def _halves(self, run: LayerRun, stream: Tensor, delta: Tensor | None, rows: Rows) -> Tensor | None:
        """Mixer and feed-forward; what is yet to be added."""
        layer, ops, work, scale = run.layer, self._ops, self._work, self.architecture.residual_scale
        n, width = stream.shape
        inner = self._entering(run, "attn_norm", stream, delta)
        out = run.mixer(inner, rows, work, ops)
        if layer.post_norm:
            ops.norm(out, run.norms["post_attn_norm"], out)
        second = work.take("second", n, width)
        if layer.parallel:
            run.feed_forward(FeedForwardInput(inner, stream), work, ops, second)
            ops.add(out, second, 1.0)
            return out
        if run.laurel is not None:
            self._go_around(run, run.laurel, stream, inner, out)
            inner = self._entering(run, "ffn_norm", stream, None)
        elif layer.pre_norm:
            inner = self._entering(run, "ffn_norm", stream, out)
        else:
            ops.add(stream, out, scale)
            if not layer.post_norm:
                ops.norm(stream, run.norms["attn_norm"], stream)
            inner = stream
        run.feed_forward(FeedForwardInput(inner, stream), work, ops, second)
        if layer.post_norm:
            ops.norm(second, run.norms["post_ffn_norm"], second)
        if not layer.pre_norm and not layer.post_norm:
            ops.add(stream, second, scale)
            ops.norm(stream, run.norms["ffn_norm"], stream)
            return None
        return second

    def _go_around(
        self, run: LayerRun, laurel: tuple[PackedMatrix, PackedMatrix], stream: Tensor, inner: Tensor, out: Tensor
    ) -> None:
        """Both ways are added to the stream, over the root of two. `out`: what the mixer made."""
        ops, (down, up) = self._ops, laurel
        around = self._work.take("around", *stream.shape)
        low = self._work.take("laurel", len(stream), down.n_out)
        ops.project(inner, down, None, low)
        ops.project(low, up, None, around)
        ops.norm(around, run.norms["laurel_norm"], around)
        ops.add(around, inner, 1.0)
        ops.add(stream, out, self.architecture.residual_scale)
        ops.add(stream, around, 1.0)
        ops.scale(stream, math.sqrt(0.5))

    def _entering(self, run: LayerRun, norm: str, stream: Tensor, delta: Tensor | None) -> Tensor:
        scale = self.architecture.residual_scale
        if run.layer.pre_norm:
            inner = self._work.take("inner", *stream.shape)
            self._ops.add_norm(stream, delta, scale, run.norms[norm], inner)
            return inner
        if delta is not None:
            self._ops.add(stream, delta, scale)
        return stream

    def _end(self, run: LayerRun, stream: Tensor, delta: Tensor | None, said: Tensor | None) -> Tensor | None:
        """What ids say to the layer, and its factor; without both, `delta` waits for the next norm."""
        ops, scale = self._ops, self.architecture.residual_scale
        if run.embedding is None and run.factor == 1.0:
            return delta
        if delta is not None:
            ops.add(stream, delta, scale)
        if run.embedding is not None and said is not None:
            ops.add(stream, self._heard(run, stream, said), scale)
        if run.factor != 1.0:
            ops.scale(stream, run.factor)
        return None

    def _heard(self, run: LayerRun, stream: Tensor, said: Tensor) -> Tensor:
        """What ids say to a layer that has this stream: the buffer `delta`."""
        assert run.embedding is not None
        ops, (gate, up) = self._ops, run.embedding
        opened = self._work.take("opened", len(stream), gate.n_out)
        ops.project(stream, gate, None, opened)
        ops.activate(opened, "gelu_tanh", said, opened)
        out = self._work.take("delta", *stream.shape)
        ops.project(opened, up, None, out)
        ops.norm(out, run.norms["post_embedding_norm"], out)
        return out


def _lowered(weights: DeviceWeights, index: int, kv: LayerKv, rotations: Rotations) -> LayerRun:
    layer, prefix = weights.architecture.layers[index], f"layers.{index}."
    embedding = None
    if layer.embedding:
        embedding = (weights.matrix(f"{prefix}embedding_gate"), weights.matrix(f"{prefix}embedding_up"))
    return LayerRun(
        layer,
        mixer_kind(layer.mixer).lower(layer.mixer, weights, MixerPlace(prefix, kv, rotations)),
        feed_forward_kind(layer.feed_forward).lower(layer.feed_forward, weights, prefix),
        {name: weights.norm(prefix + name) for name in _LAYER_NORMS if weights.has(prefix + name)},
        float(weights.required(f"{prefix}scale")[0]) if layer.scaled else 1.0,
        embedding,
        (weights.matrix(f"{prefix}laurel_down"), weights.matrix(f"{prefix}laurel_up")) if layer.laurel else None,
        StreamsOfLayer.lowered(weights, prefix) if weights.architecture.streams > 1 else None,
    )


def layer_seen(architecture: Architecture, index: int) -> int:
    """The layer whose keys and values this one sees."""
    mixer = architecture.layers[index].mixer
    return mixer.shares if isinstance(mixer, Attention) and mixer.shares >= 0 else index
