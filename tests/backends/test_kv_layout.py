"""The places of a block's parts: as kernels/cpu/engine/attention.h has them, and for kinds that come."""

from __future__ import annotations

import itertools

import pytest
from imp_server.backends.kv_layout import ELEMENT_TYPES, KvLayout, LayerPlace, block_bytes, layer_place
from imp_server.core import ConfigError
from imp_server.models.architecture import CacheGroup
from imp_server.models.mixers import Attention, CachedPart

from tests.backends.array_source import mixed_groups, tiny


def ranges(place: LayerPlace, dtype: str, n_vectors: int) -> list[tuple[int, int]]:
    """Of every head's numbers and scales: first byte, and the one behind the last."""
    element = ELEMENT_TYPES[dtype]
    found = []
    for part in place.parts:
        for head in range(part.part.heads):
            at = part.values + head * part.stride
            found.append((at, at + n_vectors * element.value_bytes(part.part.size)))
            if element.scale_bytes:
                at = part.scales + head * part.stride
                found.append((at, at + n_vectors * element.scales_bytes(part.part.size)))
    return sorted(found)


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
@pytest.mark.parametrize(
    "parts",
    [
        Attention(8, 2, 64).cached(),
        Attention(8, 4, 32, value_head_size=48).cached(),
        (CachedPart("latent", 1, 512), CachedPart("rope", 1, 64)),
        (CachedPart("state", 16, 128), CachedPart("conv", 1, 4)),
    ],
    ids=["attention", "other values", "latent", "state"],
)
def test_nothing_overlaps_and_nothing_is_left_out(parts: tuple[CachedPart, ...], dtype: str) -> None:
    for n_vectors in (1, 16):
        place = layer_place(parts, ELEMENT_TYPES[dtype], n_vectors)
        taken = ranges(place, dtype, n_vectors)
        assert taken[0][0] == 0 and taken[-1][1] == place.n_bytes
        assert all(before[1] == after[0] for before, after in itertools.pairwise(taken))


def test_attention_lies_as_the_kernels_read_it() -> None:
    """Per head: K, V, then of int8 the scales of K and of V."""
    k, v = layer_place(Attention(4, 2, 32).cached(), ELEMENT_TYPES["bf16"], 16).parts
    assert (k.values, v.values, k.scales, v.scales, k.stride) == (0, 16 * 32 * 2, -1, -1, 2 * 16 * 32 * 2)
    k, v = layer_place(Attention(4, 2, 32).cached(), ELEMENT_TYPES["int8"], 16).parts
    assert (k.values, v.values, k.scales, v.scales, k.stride) == (0, 512, 1024, 1024 + 64, 1024 + 128)


def test_layers_of_a_group_follow_each_other() -> None:
    architecture = tiny(n_layers=3)
    layout = KvLayout(architecture, architecture.cache_groups[0], "bf16")
    assert [layout[i].offset for i in range(3)] == [0, layout[0].n_bytes, 2 * layout[0].n_bytes]
    assert layout.block_bytes == 3 * layout[0].n_bytes


def test_each_group_has_its_own_blocks_and_a_state_its_slots() -> None:
    architecture = mixed_groups()
    assert block_bytes(architecture, "bf16") == (2 * 2 * 16 * 16 * 2,) * 2
    slots = KvLayout(architecture, CacheGroup("state", (0,)), "f32")
    assert slots.n_vectors == 1 and slots.block_bytes == 2 * 2 * 16 * 4
    with pytest.raises(ConfigError, match="fp4"):
        block_bytes(architecture, "fp4")
