"""One forward of a ragged batch: the Architecture, executed field by field."""

from __future__ import annotations

import numpy as np
import torch

from imp_server.backends.base import BLOCK_TOKENS, Int32s, Step
from imp_server.backends.reference.attention import Keys, attend
from imp_server.backends.reference.parts import Tensors, feed_forward, norm
from imp_server.backends.reference.pools import KvPools
from imp_server.backends.reference.rope import RotaryTable
from imp_server.backends.reference.tiles import linear, pad_rows, padded
from imp_server.models.architecture import Architecture, Layer, Rope


class Forward:
    """The model as torch tensors. Reads and writes the pools it is handed; keeps nothing between steps."""

    def __init__(self, architecture: Architecture, tensors: Tensors) -> None:
        self.architecture = architecture
        self._tensors = tensors
        self._layers = [_of_layer(tensors, i) for i in range(architecture.n_layers)]
        self._rotary: dict[Rope, RotaryTable] = {}

    def hidden(self, step: Step, pools: KvPools | None) -> torch.Tensor:
        """Hidden states after the final norm [n_ids, width]."""
        batch = _Batch(step)
        x = self._embed(batch)
        for index, layer in enumerate(self.architecture.layers):
            x = self._layer(x, index, layer, batch, pools)
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

    def _embed(self, batch: _Batch) -> torch.Tensor:
        a, t = self.architecture, self._tensors
        x = t["embedding"][batch.ids] * a.embedding_scale
        if a.position_embeddings:
            x = x + t["position_embedding"][batch.positions.clamp(max=a.position_embeddings - 1)]
        if a.token_types:
            x = x + t["token_types"][0]
        return self._norm(x, t, "embedding_norm") if a.embedding_norm else x

    def _layer(self, x: torch.Tensor, index: int, layer: Layer, batch: _Batch, pools: KvPools | None) -> torch.Tensor:
        a, t = self.architecture, self._layers[index]
        inner = self._norm(x, t, "attn_norm") if layer.pre_norm else x
        out = self._attention(inner, index, layer, batch, pools)
        if layer.post_norm:
            out = self._norm(out, t, "post_attn_norm")
        if layer.parallel_ffn:
            return x + (out + feed_forward(inner, t, layer, a.activation)) * a.residual_scale
        x = x + out * a.residual_scale
        norm_after_sum = not layer.pre_norm and not layer.post_norm
        if norm_after_sum:
            x = self._norm(x, t, "attn_norm")
        inner = self._norm(x, t, "ffn_norm") if layer.pre_norm else x
        out = feed_forward(inner, t, layer, a.activation)
        if layer.post_norm:
            out = self._norm(out, t, "post_ffn_norm")
        x = x + out * a.residual_scale
        return self._norm(x, t, "ffn_norm") if norm_after_sum else x

    def _attention(
        self, x: torch.Tensor, index: int, layer: Layer, batch: _Batch, pools: KvPools | None
    ) -> torch.Tensor:
        t = self._layers[index]
        q, k, v, gate = self._qkv(x, t, layer, batch)
        if pools is not None:
            slots = batch.slots(layer.cache_group)
            pools.write(index, slots, k[: batch.n], v[: batch.n])
        out = x.new_zeros((len(x), layer.n_heads, layer.value_head_size))
        for row in range(batch.n_rows):
            begin, end, start = batch.span(row)
            if pools is None:
                keys = Keys(k[begin:end], v[begin:end], 0)
            else:
                first = max(0, start - layer.window + 1) if layer.window else 0
                keys = pools.read(index, batch.table(layer.cache_group, row), first, start + end - begin)
            out[begin:end] = attend(q[begin:end], start, keys, layer, t.get("sinks"))
        if gate is not None:
            out = out * torch.sigmoid(gate)
        return linear(out.flatten(1), t["o"], t.get("o.bias"))

    def _qkv(
        self, x: torch.Tensor, t: Tensors, layer: Layer, batch: _Batch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        q, k, v = (linear(x, t[name], t.get(f"{name}.bias")) for name in ("q", "k", "v"))
        gate = None
        if layer.gated_attention:
            # per head: q, then its gate
            q, gate = q.view(len(x), layer.n_heads, 2, layer.head_size).unbind(2)
            q = q.reshape(len(x), -1)
        if layer.qk_norm == "whole":
            q, k = self._norm(q, t, "q_norm"), self._norm(k, t, "k_norm")
        q = q.view(len(x), layer.n_heads, layer.head_size)
        k = k.view(len(x), layer.n_kv_heads, layer.head_size)
        v = v.view(len(x), layer.n_kv_heads, layer.value_head_size)
        if layer.qk_norm == "per_head":
            q, k = self._norm(q, t, "q_norm"), self._norm(k, t, "k_norm")
        if layer.rope is not None and layer.rope.style != "none":
            table = self._rotary.setdefault(layer.rope, RotaryTable(layer.rope))
            q, k = table.rotate(q, batch.positions), table.rotate(k, batch.positions)
        return q, k, v, gate

    def _norm(self, x: torch.Tensor, t: Tensors, name: str) -> torch.Tensor:
        a = self.architecture
        return norm(x, a.norm, a.norm_eps, t[name], t.get(f"{name}.bias"))


class _Batch:
    """The step's arrays as tensors, padded with copies of its last id to a multiple of 16."""

    def __init__(self, step: Step) -> None:
        self.n = len(step.ids)
        self.n_rows = len(step.rows)
        self._step = step
        n_more = padded(self.n) - self.n
        self.ids = torch.from_numpy(np.pad(step.ids.astype(np.int64), (0, n_more), mode="edge"))
        self.positions = torch.from_numpy(np.pad(step.positions.astype(np.int64), (0, n_more), mode="edge"))
        self._slots: dict[int, torch.Tensor] = {}

    def span(self, row: int) -> tuple[int, int, int]:
        """Flat begin and end, and the position of the first id."""
        begin, end = int(self._step.row_starts[row]), int(self._step.row_starts[row + 1])
        return begin, end, int(self._step.positions[begin])

    def table(self, group: int, row: int) -> Int32s:
        table: Int32s = self._step.block_tables[group][row]
        return table

    def slots(self, group: int) -> torch.Tensor:
        """Where each id of the step is written in the group's pools."""
        if group not in self._slots:
            step = self._step
            rows = np.repeat(np.arange(self.n_rows), np.diff(step.row_starts))
            blocks = step.block_tables[group][rows, step.positions // BLOCK_TOKENS].astype(np.int64)
            if (blocks < 0).any():
                raise ValueError("the step writes a position that its block table doesn't cover")
            self._slots[group] = torch.from_numpy(blocks * BLOCK_TOKENS + step.positions % BLOCK_TOKENS)
        return self._slots[group]


def _of_layer(tensors: Tensors, index: int) -> Tensors:
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
