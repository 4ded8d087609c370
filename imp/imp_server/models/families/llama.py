"""llama: Llama 1-3, Mistral, Mixtral, SmolLM ... as GGUF's architecture `llama` or as a checkpoint.

GGUF's converter permutes the rows of q and k, so that rope turns neighbouring pairs (style `interleaved`);
checkpoints turn halves (`neox`).
"""

from __future__ import annotations

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.architecture import Activation, Architecture, CacheGroup, Experts, Layer, Rope, RopeScaling
from imp_server.models.checkpoint_names import decoder_checkpoint_names
from imp_server.models.checkpoint_rope import TOP_LEVEL, rope_of_config
from imp_server.models.config_keys import DECODER_CONFIG_KEYS
from imp_server.models.gguf_keys import DECODER_KEYS
from imp_server.models.gguf_names import decoder_names
from imp_server.models.keys import Keys
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.dequantise import dequantise
from imp_server.weights.gguf import GgufFile
from imp_server.weights.header import ModelHeader

GGUF_ARCHITECTURES = ("llama",)
HF_MODEL_TYPES = ("llama", "mistral")
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def describe(header: ModelHeader, file: GgufFile) -> Architecture:
    """Raises InvalidModel if the header lacks something or contradicts itself."""
    keys = Keys(header)
    n_layers = keys.integer("block_count", high=4096)
    if n_layers > len(file.tensors):  # before anything of that size is made
        raise keys.wrong("block_count", n_layers, f"what {len(file.tensors)} tensors can be")
    width = keys.integer("embedding_length")
    n_heads = keys.integer("attention.head_count", high=4096)
    n_kv_heads = keys.integer("attention.head_count_kv", n_heads, high=4096)
    if n_heads % n_kv_heads:
        raise InvalidModel(f"{header.path.name}: {n_heads} heads can't share {n_kv_heads} key heads")
    head_size = keys.integer("attention.key_length", width // n_heads, low=2)
    experts = _experts(keys)
    window = keys.integer("attention.sliding_window", 0, low=0, high=1 << 30)
    layer = Layer(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_size=head_size,
        value_head_size=keys.integer("attention.value_length", head_size),
        window=window,
        rope=_rope(keys, file, head_size),
        ffn_hidden=0 if experts else keys.integer("feed_forward_length"),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        ffn_bias="blk.0.ffn_up.bias" in file.tensors,
        experts=experts,
    )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise InvalidModel(f"{header.path.name}: the tensor 'token_embd.weight' is missing or no matrix")
    architecture = Architecture(
        family="llama",
        n_layers=n_layers,
        width=width,
        vocab_size=embedding.shape[0],
        context_length=keys.integer("context_length", high=1 << 30),
        layers=(layer,) * n_layers,
        cache_groups=(CacheGroup("window" if window else "full", tuple(range(n_layers)), window),),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in file.tensors,
    )
    keys.refuse_unread(DECODER_KEYS)
    return architecture


names = decoder_names
checkpoint_names = decoder_checkpoint_names


def describe_checkpoint(header: ModelHeader, checkpoint: Checkpoint) -> Architecture:
    """Raises InvalidModel if config.json lacks something or contradicts itself."""
    keys = Keys(header)
    n_layers = keys.integer("num_hidden_layers", high=4096)
    if n_layers > len(checkpoint.names()):
        raise keys.wrong("num_hidden_layers", n_layers, f"what {len(checkpoint.names())} tensors can be")
    n_heads = keys.integer("num_attention_heads", high=4096)
    n_kv_heads = keys.integer("num_key_value_heads", n_heads, high=4096)
    width = keys.integer("hidden_size")
    if n_heads % n_kv_heads:
        raise InvalidModel(f"{header.path.name}: {n_heads} heads can't share {n_kv_heads} key heads")
    head_size = keys.integer("head_dim", width // n_heads, low=2)
    window = keys.integer("sliding_window", 0, low=0, high=1 << 30) if header.architecture == "mistral" else 0
    layer = Layer(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        window=window,
        rope=rope_of_config(header.hyperparameters, head_size, header.path.name),
        ffn_hidden=keys.integer("intermediate_size"),
        qkv_bias=_bias(keys, "attention_bias", "self_attn.q_proj", checkpoint),
        out_bias=_bias(keys, "attention_bias", "self_attn.o_proj", checkpoint),
        ffn_bias=_bias(keys, "mlp_bias", "mlp.up_proj", checkpoint),
    )
    architecture = Architecture(
        family="llama",
        n_layers=n_layers,
        width=width,
        vocab_size=keys.integer("vocab_size", high=1 << 22),
        context_length=keys.integer("max_position_embeddings", high=1 << 30),
        layers=(layer,) * n_layers,
        cache_groups=(CacheGroup("window" if window else "full", tuple(range(n_layers)), window),),
        norm_eps=keys.number("rms_norm_eps"),
        activation=_activation(keys, header.path.name),
        tied_head="lm_head.weight" not in checkpoint or header.hyperparameters.get("tie_word_embeddings") is True,
    )
    _check_layer_types(header, window)
    keys.note(*TOP_LEVEL, "rope_parameters", "rope_scaling", "tie_word_embeddings", "layer_types")
    keys.refuse_unread(DECODER_CONFIG_KEYS)
    return architecture


def _bias(keys: Keys, key: str, module: str, checkpoint: Checkpoint) -> bool:
    """Whether the tensor is there. Raises InvalidModel where the config says something else."""
    is_there = f"model.layers.0.{module}.bias" in checkpoint
    if key in keys and keys.flag(key, False) != is_there:
        raise keys.wrong(key, not is_there, "what the tensors say")
    return is_there


def _activation(keys: Keys, where: str) -> Activation:
    name = keys.text("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"{where}: 'hidden_act' is {name!r}, which isn't supported for this family")
    return _ACTIVATIONS[name]


def _check_layer_types(header: ModelHeader, window: int) -> None:
    """All layers are of one kind. Raises UnsupportedModel."""
    types = header.hyperparameters.get("layer_types")
    wanted = "sliding_attention" if window else "full_attention"
    if types and (not isinstance(types, list) or any(kind != wanted for kind in types)):
        raise UnsupportedModel(f"{header.path.name}: 'layer_types' isn't {wanted} for every layer")


def _experts(keys: Keys) -> Experts | None:
    count = keys.integer("expert_count", 0, low=0, high=4096)
    if not count:
        return None
    hidden = keys.integer("expert_feed_forward_length", keys.integer("feed_forward_length"))
    return Experts(count, keys.integer("expert_used_count", high=count), hidden, gating="softmax_of_top_k")


def _rope(keys: Keys, file: GgufFile, head_size: int) -> Rope:
    dims = keys.integer("rope.dimension_count", head_size, low=2, high=head_size)
    factors: tuple[float, ...] = ()
    if info := file.tensors.get("rope_freqs.weight"):
        factors = tuple(dequantise(info.type, file.data(info.name)).tolist())
        if len(factors) != dims // 2 or not all(f > 0 for f in factors):
            raise InvalidModel(f"{file.path.name}: 'rope_freqs.weight' must hold {dims // 2} positive numbers")
    # Files of before these keys say `scale_linear`; a factor without a type is linear.
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{file.path.name}: 'llama.rope.scaling.type' is {kind!r}, not known for this family")
    if factor <= 0:
        raise keys.wrong("rope.scaling.factor", factor, "a positive number")
    if kind == "yarn" and keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{file.path.name}: 'llama.rope.scaling.yarn_ext_factor' isn't supported")
    context = keys.integer("context_length", high=1 << 30)
    scaling = RopeScaling(
        kind="none" if factor == 1.0 else kind,  # type: ignore[arg-type]
        factor=factor,
        original_context=keys.integer("rope.scaling.original_context_length", 0, low=0, high=1 << 30) or context,
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        frequency_factors=factors,
    )
    return Rope("interleaved", keys.number("rope.freq_base", 10000.0), dims, scaling)
