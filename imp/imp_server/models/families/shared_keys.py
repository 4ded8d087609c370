"""Last layers that see keys and values of earlier ones, and ids that speak to layers: Gemma 3n and 4."""

from __future__ import annotations

from imp_server.models.reader import Reader

_OF_SHARED = ("k", "v", "k_norm", "v_norm")


def layers_with_keys(reader: Reader) -> int:
    """How many layers have keys of their own. Published files have some of the others, too; they aren't read."""
    n_shared = reader.integer("attention.shared_kv_layers", "num_kv_shared_layers", 0, low=0, high=reader.n_layers - 1)
    for index in range(reader.n_layers - n_shared, reader.n_layers):
        if reader.format == "gguf":
            reader.leave_out(*(f"blk.{index}.attn_{name}." for name in _OF_SHARED))
        else:
            names = [f"{name}_proj" if len(name) == 1 else name for name in _OF_SHARED]
            reader.leave_out(*(f"model.layers.{index}.self_attn.{name}." for name in names))
    return reader.n_layers - n_shared


def whose_keys(reader: Reader, windows: list[int], *, windowed: bool) -> int:
    """The last layer of the same kind that has keys of its own. `windows`: of those layers that have."""
    same = [index for index, window in enumerate(windows) if bool(window) == windowed]
    if not same:
        raise reader.keys.wrong("num_kv_shared_layers", reader.n_layers - len(windows), "what its layers can share")
    return same[-1]


def layer_vocab_size(reader: Reader) -> int:
    """Ids that say something to layers (Architecture.layer_vocab_size)."""
    if reader.format == "gguf":
        return reader.rows("per_layer_token_embd.weight")
    return reader.integer("", "vocab_size_per_layer_input", reader.vocab_size(), high=1 << 22)


def layer_sizes(reader: Reader) -> list[int]:
    """Width of each layer's feed-forward."""
    key = "feed_forward_length" if reader.format == "gguf" else "intermediate_size"
    sizes = reader.keys.list_or_integer(key, 0)
    if isinstance(sizes, int):
        return [reader.integer("feed_forward_length", "intermediate_size")] * reader.n_layers
    if len(sizes) != reader.n_layers or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise reader.keys.wrong(key, sizes, f"a list of {reader.n_layers} sizes")
    return sizes
