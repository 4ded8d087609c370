"""`PlainOperations`: the whole list in torch. Everything else in this folder is what it is made of."""

from __future__ import annotations

import torch

from imp_server.backends.cuda.operations import (
    AttentionForm,
    LayerKv,
    NormForm,
    PackedMatrix,
    QkvForm,
    QueryTemperature,
    Rotation,
    RouterForm,
    Rows,
    SampleInputs,
    SampleOutputs,
    SlotState,
)
from imp_server.backends.cuda.plain import experts, sampling
from imp_server.backends.cuda.plain.attention import attend
from imp_server.backends.cuda.plain.cache import gather, places_of, positions_of, write
from imp_server.backends.cuda.plain.layers import activated, gated, normed, place_qkv, rotated, tempered
from imp_server.backends.cuda.plain.weights import dequantised, gathered, multiply, pieces
from imp_server.models.feed_forwards import Activation

Tensor = torch.Tensor
LEAST_SQUARE = 1e-5
"""Mean square that is divided by."""


class PlainOperations:
    """Implements operations.py `Operations` on any device; keeps nothing."""

    name = "plain"

    def embed(self, ids: Tensor, rows: Rows, slots: SlotState, table: PackedMatrix, scale: float, out: Tensor) -> None:
        last = slots.last[rows.slots.long()].repeat_interleave(rows.width, output_size=rows.n_tokens)
        known = torch.where(ids < 0, last, ids).clamp_min(0)
        known = torch.where(known < table.n_out, known, 0)
        out.copy_(dequantised(gathered(table, known.long(), table.n_out)) * scale)

    def add_norm(self, stream: Tensor, delta: Tensor | None, scale: float, norm: NormForm, out: Tensor) -> None:
        if delta is not None:
            self.add(stream, delta, scale)
        out.copy_(normed(stream, norm))

    def add(self, stream: Tensor, delta: Tensor, scale: float, opened: Tensor | None = None) -> None:
        if opened is not None:
            delta = delta * torch.sigmoid(opened)
        stream.add_(delta if scale == 1.0 else delta * scale)

    def scale(self, x: Tensor, factor: float) -> None:
        x.mul_(factor)

    def times(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        torch.mul(x, weight, out=out)

    def tanh(self, x: Tensor) -> None:
        x.tanh_()

    def match_size(self, x: Tensor, like: Tensor) -> None:
        target = like.square().mean(dim=-1, keepdim=True).sqrt()
        x.copy_(x * target / x.square().mean(dim=-1, keepdim=True).clamp_min(LEAST_SQUARE).sqrt())

    def cut_off(self, x: Tensor, deviations: float) -> None:
        mean, deviation = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True, unbiased=False)
        x.copy_(torch.relu(x - (mean + deviation * deviations)))

    def predict(self, streams: Tensor, shares: Tensor, out: Tensor) -> None:
        n = len(streams)
        for s in range(n):
            total = streams[0] * shares[:, s * n, None]
            for i in range(1, n):
                total = total + streams[i] * shares[:, s * n + i, None]
            out[s].copy_(total + streams[s])

    def correct(self, streams: Tensor, made: Tensor, weights: Tensor) -> None:
        change = made - streams[0]
        for s, stream in enumerate(streams):
            stream.add_(change * (weights[:, s, None] + 1.0))

    def norm(self, x: Tensor, norm: NormForm, out: Tensor) -> None:
        out.copy_(normed(x, norm))

    def project(self, x: Tensor, matrix: PackedMatrix, bias: Tensor | None, out: Tensor) -> None:
        multiply(x, matrix, bias, out)

    def gated_project(
        self,
        x: Tensor,
        gate: PackedMatrix,
        up: PackedMatrix,
        biases: tuple[Tensor, Tensor] | None,
        act: Activation,
        out: Tensor,
    ) -> None:
        halves = [torch.empty_like(out), torch.empty_like(out)]
        for i, matrix in enumerate((gate, up)):
            multiply(x, matrix, None if biases is None else biases[i], halves[i])
        out.copy_(gated(act, *halves))

    def activate(self, x: Tensor, act: Activation, times: Tensor | None, out: Tensor) -> None:
        made = activated(act, x)
        out.copy_(made if times is None else made * times)

    def qkv_epilogue(
        self, qkv: Tensor, form: QkvForm, rows: Rows, kv: LayerKv | None, q: Tensor, gate: Tensor | None
    ) -> None:
        queries, gates = place_qkv(qkv, form, rows, kv)
        q.copy_(queries)
        if gate is not None and gates is not None:
            gate.copy_(gates)

    def latent_epilogue(self, compressed: Tensor, norm: NormForm, rotation: Rotation, rows: Rows, kv: LayerKv) -> None:
        rank = kv.parts[0].size
        blocks, places = places_of(rows, kv)
        write(kv, 0, blocks, places, normed(compressed[:, :rank], norm)[:, None])
        write(kv, 1, blocks, places, rotated(compressed[:, None, rank:], rotation, positions_of(rows)))

    def latent_queries(
        self,
        q: Tensor,
        k_b: PackedMatrix,
        rotation: Rotation,
        temperature: QueryTemperature | None,
        rows: Rows,
        out: Tensor,
    ) -> None:
        positions = positions_of(rows)
        still, turning = q[..., : k_b.n_in], q[..., k_b.n_in :]
        made = torch.empty((*q.shape[:2], k_b.n_out // q.shape[1]), device=q.device)
        self.by_head(still, k_b, made)
        out.copy_(tempered(torch.cat([made, rotated(turning, rotation, positions)], -1), temperature, positions))

    def by_head(self, x: Tensor, matrix: PackedMatrix, out: Tensor) -> None:
        per_head = out.shape[-1]
        for first, end, values in pieces(matrix, per_head):
            heads = slice(first // per_head, end // per_head)
            own = values.view(-1, per_head, values.shape[1])
            out[:, heads].copy_(torch.bmm(x[:, heads].transpose(0, 1), own.transpose(1, 2)).transpose(0, 1))

    def decode_attention(
        self, q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Tensor | None, out: Tensor
    ) -> None:
        seen = attend(q, rows, kv, form)
        out.copy_(seen if gate is None else seen * torch.sigmoid(gate))

    def prefill_attention(
        self, q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Tensor | None, out: Tensor
    ) -> None:
        self.decode_attention(q, rows, kv, form, gate, out)

    def route(self, logits: Tensor, form: RouterForm, chosen: Tensor, weights: Tensor) -> None:
        ids, shares = experts.routed(logits, form)
        chosen.copy_(ids)
        weights.copy_(shares)

    def experts_gated(
        self,
        x: Tensor,
        chosen: Tensor,
        on_input: Tensor | None,
        gate: PackedMatrix,
        up: PackedMatrix,
        biases: tuple[Tensor, Tensor] | None,
        act: Activation,
        out: Tensor,
    ) -> None:
        count = gate.n_out // out.shape[-1]
        out.copy_(experts.experts_gated(x, chosen, on_input, (gate, up), biases, act, count))

    def experts_down(
        self,
        hidden: Tensor,
        chosen: Tensor,
        weights: Tensor | None,
        down: PackedMatrix,
        bias: Tensor | None,
        out: Tensor,
    ) -> None:
        count = down.n_out // out.shape[-1]
        out.copy_(experts.summed(experts.by_expert(hidden, chosen, down, count, bias), weights))

    def head_logits(
        self, hidden: Tensor, head: PackedMatrix, bias: Tensor | None, scale: float, softcap: float, out: Tensor
    ) -> None:
        multiply(hidden, head, bias, out)
        if scale != 1.0:
            out.mul_(scale)
        if softcap:
            out.div_(softcap).tanh_().mul_(softcap)

    def head_argmax(
        self, hidden: Tensor, head: PackedMatrix, bias: Tensor | None, scale: float, softcap: float, out: Tensor
    ) -> None:
        logits = torch.empty((len(hidden), head.n_out), device=hidden.device)
        self.head_logits(hidden, head, bias, scale, softcap, logits)
        best = sampling.first_best(logits)
        out.copy_(torch.where(logits.isnan().any(-1), -1, best))

    def take_best(self, best: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
        sampling.take_best(best, inputs, slots, out)

    def sample(self, logits: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
        sampling.sample(logits, inputs, slots, out)

    def copy_blocks(self, pool: Tensor, pairs: Tensor) -> None:
        pool[pairs[:, 1].long()] = pool[pairs[:, 0].long()]

    def gather_kv(self, kv: LayerKv, part: int, blocks: Tensor, out: Tensor) -> None:
        out.copy_(gather(kv, part, blocks))
