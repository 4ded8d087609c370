"""The tensors and keys of Gemma 3n's and Gemma 4's small models, for shaped_models.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.shaped_models import Shape

Sized = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Beside:
    """What such a model has beside mixers and feed-forwards."""

    said: int
    """Numbers that an id says to each layer."""
    n_shared: int
    """Last layers that see others' keys."""
    every: int
    """Each so manyth layer sees all."""
    window: int = 512
    global_head: int = 0
    """Size of heads that see all, where it is another."""
    wider: int = 1
    """How much wider the feed-forwards of layers without keys are."""
    rank: int = 0
    streams: int = 1
    sparse: int = 0
    """First layers whose gates are mostly shut."""
    has_all_keys: bool = False
    """The file has keys' and values' matrices of layers that don't read theirs, too."""


def sees_all(beside: Beside, layer: int) -> bool:
    return (layer + 1) % beside.every == 0


def matrices(shape: Shape, beside: Beside) -> Iterator[Sized]:
    """All that are quantised as a layer's own: name without `.weight`, shape."""
    w = shape.width
    for i in range(shape.n_layers):
        blk = f"blk.{i}."
        head = beside.global_head if beside.global_head and sees_all(beside, i) else shape.head_size
        hidden = shape.hidden * (beside.wider if i >= shape.n_layers - beside.n_shared else 1)
        yield blk + "attn_q", (shape.n_heads * head, w)
        if beside.has_all_keys or i < shape.n_layers - beside.n_shared:
            yield blk + "attn_k", (shape.n_kv_heads * head, w)
            yield blk + "attn_v", (shape.n_kv_heads * head, w)
        yield blk + "attn_output", (w, shape.n_heads * head)
        yield blk + "ffn_gate", (hidden, w)
        yield blk + "ffn_up", (hidden, w)
        yield blk + "ffn_down", (w, hidden)
        yield blk + "inp_gate", (beside.said, w)
        yield blk + "proj", (w, beside.said)


HALVES = ("per_layer_model_proj", "altup_proj", "altup_unembd_proj", "laurel_l", "laurel_r")
"""Matrices that quantisers leave as they are published, in 16 bits."""


def plain(shape: Shape, beside: Beside) -> Iterator[Sized]:
    """What quantisers leave in float: norms, and matrices of the streams."""
    w, n = shape.width, beside.streams
    yield "per_layer_model_proj.weight", (shape.n_layers * beside.said, w)
    yield "per_layer_proj_norm.weight", (beside.said,)
    if n > 1:
        yield "altup_proj.weight", (n - 1, w, w)
        yield "altup_unembd_proj.weight", (n - 1, w, w)
    if beside.global_head:
        yield "rope_freqs.weight", (beside.global_head // 2,)
    for i in range(shape.n_layers):
        head = beside.global_head if beside.global_head and sees_all(beside, i) else shape.head_size
        names = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "post_norm")
        yield from ((f"blk.{i}.{name}.weight", (w,)) for name in names)
        yield f"blk.{i}.attn_q_norm.weight", (head,)
        if beside.has_all_keys or i < shape.n_layers - beside.n_shared:
            yield f"blk.{i}.attn_k_norm.weight", (head,)
        if n == 1:
            yield f"blk.{i}.layer_output_scale.weight", (1,)
            continue
        yield f"blk.{i}.laurel_l.weight", (beside.rank, w)
        yield f"blk.{i}.laurel_r.weight", (w, beside.rank)
        yield f"blk.{i}.laurel_post_norm.weight", (w,)
        yield f"blk.{i}.altup_router.weight", (n, w)
        yield f"blk.{i}.altup_router_norm.weight", (w,)
        yield f"blk.{i}.altup_predict_coef.weight", (n * n, n)
        yield f"blk.{i}.altup_correct_coef.weight", (n, n)
        yield f"blk.{i}.altup_correct_scale.weight", (w,)


def keys(shape: Shape, beside: Beside) -> dict[str, Any]:
    windowed = [not sees_all(beside, i) for i in range(shape.n_layers)]
    found: dict[str, Any] = {
        "embedding_length_per_layer_input": beside.said,
        "attention.shared_kv_layers": beside.n_shared,
        "attention.sliding_window": beside.window,
        "attention.sliding_window_pattern": windowed,
        "final_logit_softcapping": 30.0,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
    }
    if beside.global_head:
        found["attention.key_length"] = found["attention.value_length"] = beside.global_head
        found["attention.key_length_swa"] = found["attention.value_length_swa"] = shape.head_size
        found["rope.dimension_count"], found["rope.dimension_count_swa"] = beside.global_head, shape.head_size
    if beside.wider > 1:
        n_own = shape.n_layers - beside.n_shared
        found["feed_forward_length"] = [shape.hidden] * n_own + [shape.hidden * beside.wider] * beside.n_shared
    if beside.streams > 1:
        found |= {"altup.active_idx": 0, "altup.num_inputs": beside.streams}
        shut = [1.6448536 if i < beside.sparse else float("-inf") for i in range(shape.n_layers)]
        found["activation_sparsity_scale"] = shut
    return found
