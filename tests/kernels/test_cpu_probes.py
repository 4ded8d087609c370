"""What a machine can do at best: each probe reads and computes what it says, and a mix lies between its parts."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from imp_server.backends.cpu import abi, probes
from imp_server.backends.cpu.layouts import FLOAT_LAYOUTS, LAYOUTS
from imp_server.backends.cpu.packing import PackedShape
from imp_server.models.feed_forwards import Experts
from imp_server.native import usable_isas

from tests.backends.cpu.synthetic_models import VARIANTS

ISAS = usable_isas()


@pytest.mark.parametrize("isa", ISAS)
def test_a_read_loop_meets_every_byte(isa: str) -> None:
    library = abi.library(isa)
    room = np.zeros(64 * 64 + 64, dtype=np.uint8)
    data = room[-room.ctypes.data % 64 :][: 64 * 64]
    for loop in range(library.imp_cpu_n_read_loops()):
        for at in (0, 1000, 2047, 4095):
            data[at] = 7
            assert library.imp_cpu_read_loop(loop, data.ctypes.data, len(data)) == 7
            data[at] = 0


@pytest.mark.parametrize("isa", ISAS)
def test_the_dot_probe_says_how_much_it_did(isa: str) -> None:
    library = abi.library(isa)
    assert library.imp_cpu_dot_registers(5, ctypes.c_int32(1)) == 5 * library.imp_cpu_dot_registers(
        1, ctypes.c_int32(1)
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [*LAYOUTS, *FLOAT_LAYOUTS])
def test_every_layout_has_an_inner_loop_to_measure(isa: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_SECONDS", 1e-6)
    assert probes.Probes(1, isa).ceiling(name) > 0


def test_threads_read_parts_of_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_SECONDS", 1e-6)
    two = probes.Probes(2)
    assert two.read_bandwidth(np.ones(1 << 16, dtype=np.uint8)) > 0
    assert two.dot_peak() > 0


def test_of_experts_only_the_chosen_ones_count() -> None:
    mixture = next(v.architecture for v in VARIANTS if v.name == "experts")
    experts = mixture.layers[0].feed_forward
    assert isinstance(experts, Experts)
    shapes = {
        "layers.0.experts_up": PackedShape("Q8_0", experts.count * experts.hidden, mixture.width),
        "layers.0.q": PackedShape("Q4_0", 64, mixture.width),
        "embedding": PackedShape("Q8_0", 1000, mixture.width),
    }
    ops = probes.ops_by_layout(shapes, mixture)
    assert ops == {"Q8_0": 2 * experts.top_k * experts.hidden * mixture.width, "Q4_0": 2 * 64 * mixture.width}


def test_a_mix_takes_the_time_of_its_parts() -> None:
    ceiling = probes.mixed_ceiling({"Q4_0": 300, "Q6_K": 100}, {"Q4_0": 30.0, "Q6_K": 5.0}.__getitem__)
    assert ceiling == pytest.approx(400 / (10 + 20))
