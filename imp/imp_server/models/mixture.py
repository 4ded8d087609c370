"""A mixture of experts, read from a header: what families with a router of DeepSeek's kind have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.feed_forwards import Dense, Experts, FeedForward
from imp_server.models.reader import Reader

Gating = Literal["softmax", "sigmoid"]
_GATINGS: dict[int, Gating] = {1: "softmax", 2: "sigmoid"}
"""GGUF's `expert_gating_func`."""
CONFIG_NAMES = {
    "count": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "hidden": "moe_intermediate_size",
    "shared": "n_shared_experts",
    "scale": "routed_scaling_factor",
    "normalise": "norm_topk_prob",
    "dense": "first_k_dense_replace",
}
"""How most configs call a mixture's values."""


def experts_of(reader: Reader, *, names: Mapping[str, str] | None = None, **fields: Any) -> Experts:
    """`names`: where the family's config calls something otherwise, empty = it doesn't have it; `fields`: what is the
    family's own."""
    theirs = {**CONFIG_NAMES, **(names or {})}
    count = reader.integer("expert_count", theirs["count"], high=4096)
    hidden = fields.pop("hidden", None) or reader.integer("expert_feed_forward_length", theirs["hidden"])
    own: dict[str, Any] = {"activation": reader.activation()}
    if "gating" not in fields:
        own["gating"] = _gating(reader)
    elif reader.format == "gguf" and fields["gating"] in _GATINGS.values():
        reader.keys.only("expert_gating_func", 0, *(n for n, name in _GATINGS.items() if name == fields["gating"]))
    if "normalise_top_k" not in fields:
        own["normalise_top_k"] = _flag(reader, "expert_weights_norm", theirs["normalise"])
    if "scale" not in fields:
        own["scale"] = reader.number("expert_weights_scale", theirs["scale"], 1.0) or 1.0
    if "shared_hidden" not in fields:
        own["shared_hidden"] = hidden * reader.integer("expert_shared_count", theirs["shared"], 0, low=0, high=64)
    if "n_groups" not in fields:
        own |= _groups(reader, count)
    top_k = reader.integer("expert_used_count", theirs["top_k"], high=count)
    return Experts(count, top_k, hidden, **{**own, **fields})


def _gating(reader: Reader) -> Gating:
    """Files that don't say it: a correction of the choice belongs to sigmoids."""
    default: Gating = "sigmoid" if has_selection_bias(reader) else "softmax"
    if reader.format == "checkpoint":
        name = reader.keys.text("scoring_func", default)
        if name not in _GATINGS.values():
            raise UnsupportedModel(f"{reader.where}: 'scoring_func' is {name!r}, which isn't supported")
        return "sigmoid" if name == "sigmoid" else "softmax"
    if "expert_gating_func" not in reader.keys or reader.keys.integer("expert_gating_func", 0, low=0) == 0:
        reader.keys.note("expert_gating_func")
        return default
    number = reader.keys.integer("expert_gating_func")
    if number not in _GATINGS:
        raise UnsupportedModel(f"{reader.keys.named('expert_gating_func')} is {number}, which isn't supported")
    return _GATINGS[number]


def has_selection_bias(reader: Reader, config_stem: str = "") -> bool:
    """`config_stem`: its name in a layer of a checkpoint, where that is the family's own."""
    return reader.has("selection_bias", reader.n_layers - 1, config_stem)


def _flag(reader: Reader, gguf: str, config: str) -> bool:
    name = gguf if reader.format == "gguf" else config
    return reader.keys.flag(name, False) if name else False


def _groups(reader: Reader, count: int) -> dict[str, int]:
    n = reader.integer("expert_group_count", "n_group", 1, low=0, high=count) or 1
    top = reader.integer("expert_group_used_count", "topk_group", 1, low=0, high=count) or 1
    if count % n or top > n:
        raise InvalidModel(f"{reader.where}: {count} experts can't be {n} groups, {top} of which are used")
    return {"n_groups": n, "top_groups": top} if n > 1 else {}


def feed_forwards(
    reader: Reader, experts: Experts, n_dense: int | None = None, dense: Dense | None = None
) -> Sequence[FeedForward]:
    """Of each layer: the first ones are dense. `n_dense`: of how many, None = as the header says."""
    if n_dense is None:
        name = CONFIG_NAMES["dense"]
        n_dense = reader.integer("leading_dense_block_count", name, 0, low=0, high=reader.n_layers)
    reader.keys.note("feed_forward_length", "intermediate_size")
    if not n_dense:
        return [experts] * reader.n_layers
    return [dense or reader.dense()] * n_dense + [experts] * (reader.n_layers - n_dense)
