"""llama: Llama 1-3, Mistral, Mixtral, SmolLM ... as GGUF's architecture `llama` or as a checkpoint.

GGUF's converter permutes the rows of q and k, so that rope turns neighbouring pairs (style `interleaved`);
checkpoints turn halves (`neox`).
"""

from __future__ import annotations

from imp_server.core import InvalidModel
from imp_server.models.architecture import Architecture, CacheGroup, Experts, Layer, Rope, RopeScaling
from imp_server.models.checkpoint_names import decoder_checkpoint_names
from imp_server.models.checkpoint_rope import rope_of_config
from imp_server.models.gguf_names import decoder_names
from imp_server.models.keys import Keys
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.dequantise import dequantise
from imp_server.weights.gguf import GgufFile
from imp_server.weights.header import ModelHeader

GGUF_ARCHITECTURES = ("llama",)
HF_MODEL_TYPES = ("llama", "mistral")


def describe(header: ModelHeader, file: GgufFile) -> Architecture:
    """Raises InvalidModel if the header lacks something or contradicts itself."""
    keys = Keys(header)
    n_layers = keys.integer("block_count", high=4096)
    width = keys.integer("embedding_length")
    n_heads = keys.integer("attention.head_count", high=4096)
    n_kv_heads = keys.integer("attention.head_count_kv", n_heads, high=4096)
    if n_heads % n_kv_heads:
        raise InvalidModel(f"{header.path.name}: {n_heads} heads can't share {n_kv_heads} key heads")
    head_size = keys.integer("attention.key_length", width // n_heads, low=2)
    experts = _experts(keys)
    layer = Layer(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_size=head_size,
        value_head_size=keys.integer("attention.value_length", head_size),
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
    return Architecture(
        family="llama",
        n_layers=n_layers,
        width=width,
        vocab_size=embedding.shape[0],
        context_length=keys.integer("context_length", high=1 << 30),
        layers=(layer,) * n_layers,
        cache_groups=(CacheGroup("full", tuple(range(n_layers))),),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in file.tensors,
    )


names = decoder_names
checkpoint_names = decoder_checkpoint_names


def describe_checkpoint(header: ModelHeader, checkpoint: Checkpoint) -> Architecture:
    """Raises InvalidModel if config.json lacks something or contradicts itself."""
    keys = Keys(header)
    n_layers = keys.integer("num_hidden_layers", high=4096)
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
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in checkpoint,
        out_bias="model.layers.0.self_attn.o_proj.bias" in checkpoint,
        ffn_bias="model.layers.0.mlp.up_proj.bias" in checkpoint,
    )
    return Architecture(
        family="llama",
        n_layers=n_layers,
        width=width,
        vocab_size=keys.integer("vocab_size", high=1 << 22),
        context_length=keys.integer("max_position_embeddings", high=1 << 30),
        layers=(layer,) * n_layers,
        cache_groups=(CacheGroup("window" if window else "full", tuple(range(n_layers)), window),),
        norm_eps=keys.number("rms_norm_eps"),
        tied_head="lm_head.weight" not in checkpoint or header.hyperparameters.get("tie_word_embeddings") is True,
    )


def _experts(keys: Keys) -> Experts | None:
    count = keys.integer("expert_count", 0, low=0, high=4096)
    if not count:
        return None
    hidden = keys.integer("feed_forward_length")
    return Experts(count, keys.integer("expert_used_count", high=count), hidden, gating="softmax_of_top_k")


def _rope(keys: Keys, file: GgufFile, head_size: int) -> Rope:
    dims = keys.integer("rope.dimension_count", head_size, low=2, high=head_size)
    factors: tuple[float, ...] = ()
    if info := file.tensors.get("rope_freqs.weight"):
        factors = tuple(dequantise(info.type, file.data(info.name)).tolist())
        if len(factors) != dims // 2 or not all(f > 0 for f in factors):
            raise InvalidModel(f"{file.path.name}: 'rope_freqs.weight' must hold {dims // 2} positive numbers")
    kind = keys.text("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise InvalidModel(f"{file.path.name}: rope scaling {kind!r} isn't known for this family")
    scaling = RopeScaling(
        kind="llama3" if factors else "linear" if kind == "linear" else "yarn" if kind == "yarn" else "none",
        factor=keys.number("rope.scaling.factor", 1.0),
        original_context=keys.integer("rope.scaling.original_context_length", 0, low=0, high=1 << 30),
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
        frequency_factors=factors,
    )
    return Rope("interleaved", keys.number("rope.freq_base", 10000.0), dims, scaling)
