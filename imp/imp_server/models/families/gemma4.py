"""gemma4: Gemma 4's text side: heads of two sizes, keys shared with earlier layers, what ids say to each layer, experts
beside a dense half."""

from __future__ import annotations

import math
from dataclasses import replace

from imp_server.core import InvalidModel
from imp_server.models.architecture import Architecture, Layer
from imp_server.models.families.shared_keys import layer_sizes, layer_vocab_size, layers_with_keys, whose_keys
from imp_server.models.feed_forwards import Dense, DenseAndExperts, Experts, FeedForward
from imp_server.models.hyperparameters import Hyperparameters
from imp_server.models.mixers import Attention
from imp_server.models.reader import Reader
from imp_server.models.rotation import Rope, RopeScaling

GGUF_ARCHITECTURES = ("gemma4",)
HF_MODEL_TYPES = ("gemma4_text",)
_NORMS = {
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
    "post_dense_norm": "post_feedforward_layernorm_1",
    "experts_norm": "pre_feedforward_layernorm_2",
    "post_experts_norm": "post_feedforward_layernorm_2",
}
CHECKPOINT_NAMES = _NORMS | {
    "scale": "=layer_scalar",
    "router": "router.proj",
    "router_scale": "=router.scale",
    "expert_scale": "=router.per_expert_scale",
    "experts_gate_up": "=experts.gate_up_proj",
    "experts_down": "=experts.down_proj",
    "embedding_gate": "per_layer_input_gate",
    "embedding_up": "per_layer_projection",
    "post_embedding_norm": "post_per_layer_input_norm",
}
GGUF_NAMES = {
    "scale": "layer_output_scale",
    "router_scale": "=ffn_gate_inp.scale",
    "expert_scale": "=ffn_down_exps.scale",
    "post_dense_norm": "post_ffw_norm_1",
    "experts_norm": "pre_ffw_norm_2",
    "post_experts_norm": "post_ffw_norm_2",
    "embedding_gate": "inp_gate",
    "embedding_up": "proj",
    "post_embedding_norm": "post_norm",
}


def describe(reader: Reader) -> Architecture:
    reader.keys.note("per_layer_config", "vocab_size_per_layer_input", "rope.dimension_count_swa")
    windows = reader.windows(6)
    kinds = {bool(window): _attention(reader, bool(window)) for window in windows}
    n_own = layers_with_keys(reader)
    size = reader.integer("embedding_length_per_layer_input", "hidden_size_per_layer_input", 0, low=0)
    halves = _feed_forwards(reader, n_own)
    layers = []
    for index, window in enumerate(windows):
        mixer = kinds[bool(window)].seeing(window)
        if index >= n_own:
            shared = whose_keys(reader, windows[:n_own], windowed=bool(window))
            mixer = replace(mixer, shares=shared, v_norm=False, keys_are_values=False)
        layers.append(Layer(mixer, halves[index], post_norm=True, embedding=size, scaled=True))
    return reader.architecture(
        "gemma4",
        layers,
        embedding_scale=math.sqrt(reader.width),
        layer_vocab_size=layer_vocab_size(reader) if size else 0,
        logit_softcap=reader.number("final_logit_softcapping", "final_logit_softcapping", 0.0),
    )


def _attention(reader: Reader, windowed: bool) -> Attention:
    n_heads = reader.integer("attention.head_count", "num_attention_heads", high=4096)
    size = _head_size(reader, windowed)
    return Attention(
        n_heads,
        _n_kv_heads(reader, windowed),
        size,
        rope=_rope(reader, size, windowed),
        qk_norm="per_head",
        v_norm=True,
        keys_are_values=not windowed and _keys_are_values(reader),
        scale=1.0,
        qkv_bias=reader.has_bias("q", "attention_bias"),
        out_bias=reader.has_bias("o", "attention_bias"),
    )


def _head_size(reader: Reader, windowed: bool) -> int:
    if reader.format == "gguf":
        end = "_swa" if windowed else ""
        reader.keys.note(f"attention.value_length{end}")
        return reader.keys.integer(f"attention.key_length{end}", low=2)
    size = reader.keys.integer("head_dim", low=2)
    if windowed:
        return size
    return _of_full_layers(reader).integer("head_dim", reader.keys.integer("global_head_dim", 512), low=2)


def _of_full_layers(reader: Reader) -> Hyperparameters:
    """What newer configs say of single layers; those that see all are alike."""
    first = next((index for index, window in enumerate(reader.windows(6)) if not window), 0)
    return reader.keys.inside("per_layer_config").inside(str(first))


def _n_kv_heads(reader: Reader, windowed: bool) -> int:
    if reader.format == "gguf":
        counts = reader.keys.list_or_integer("attention.head_count_kv", 1)
        if isinstance(counts, int):
            return counts
        if len(counts) != reader.n_layers or not all(isinstance(count, int) and 0 < count <= 4096 for count in counts):
            raise reader.keys.wrong("attention.head_count_kv", counts, f"a list of {reader.n_layers} numbers of heads")
        windows = reader.windows(6)
        return int(next(count for count, window in zip(counts, windows, strict=True) if bool(window) == windowed))
    n = reader.keys.integer("num_key_value_heads", high=4096)
    reader.keys.note("num_global_key_value_heads")
    if windowed:
        return n
    if _keys_are_values(reader):
        n = reader.keys.integer("num_global_key_value_heads", n, high=4096)
    return _of_full_layers(reader).integer("num_key_value_heads", n, high=4096)


def _keys_are_values(reader: Reader) -> bool:
    if reader.format == "checkpoint":
        return reader.keys.flag("attention_k_eq_v", False)
    first = next(index for index, window in enumerate(reader.windows(6)) if not window)
    return not reader.has("v", first)


def _rope(reader: Reader, size: int, windowed: bool) -> Rope:
    """Layers that see all turn a share of the pairs, the fast ones of the whole head."""
    if reader.format == "gguf":
        base = reader.number("rope.freq_base_swa", "", 1e4)
        if windowed:
            return Rope("neox", base, size)
        rope = reader.rope(size)
        if not rope.scaling.frequency_factors:
            raise InvalidModel(f"{reader.where}: the tensor 'rope_freqs.weight' is missing")
        return rope
    kind = "sliding_attention" if windowed else "full_attention"
    values = reader.keys.inside("rope_parameters").inside(kind)
    base = values.positive("rope_theta", 1e4 if windowed else 1e6)
    if windowed:
        return Rope("neox", base, size)
    share = values.positive("partial_rotary_factor", 0.25)
    if values.text("rope_type") != "proportional" or share > 1:
        raise values.wrong("rope_type", values.text("rope_type"), f"proportional, of a share up to 1: it is {share}")
    n_turning = int(share * size // 2)
    factors = (1.0,) * n_turning + (1e30,) * (size // 2 - n_turning)
    return Rope("neox", base, size, RopeScaling(frequency_factors=factors))


def _feed_forwards(reader: Reader, n_own: int) -> list[FeedForward]:
    activation = reader.activation("gelu_tanh")
    is_wider = reader.format == "checkpoint" and reader.keys.flag("use_double_wide_mlp", False)
    sizes = [size * (2 if is_wider and index >= n_own else 1) for index, size in enumerate(layer_sizes(reader))]
    dense = [Dense(size, activation=activation) for size in sizes]
    count = reader.integer("expert_count", "num_experts", 0, low=0, high=4096)
    reader.keys.note("enable_moe_block", "top_k_experts", "moe_intermediate_size")
    if not count:
        return list(dense)
    experts = Experts(
        count,
        reader.integer("expert_used_count", "top_k_experts", high=count),
        reader.integer("expert_feed_forward_length", "moe_intermediate_size"),
        activation=activation,
    )
    return [DenseAndExperts(half, experts) for half in dense]
