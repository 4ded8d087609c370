"""What lies between the backend and a card, as far as a CPU can show it; and the plan of a card's memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from imp_server.backends import choose, make_backend
from imp_server.backends.cuda import factory, planner
from imp_server.backends.cuda.buffers import PackedArrays, power_of_two
from imp_server.backends.cuda.device import RING, Graphs, PinnedLoans, PinnedRing
from imp_server.backends.options import BackendOptions
from imp_server.config import Config
from imp_server.config.running import CpuSettings, CudaSettings
from imp_server.core import ConfigError, UnsupportedModel
from imp_server.engine.build import build_engine

from tests.backends.array_source import BASE, ArraySource, altered, tiny
from tests.models.tiny_gguf import write_tiny_llama

MIB = 1 << 20


class Event:
    """Done once somebody waits for it."""

    def __init__(self) -> None:
        self.is_open = False
        self.n_waits = 0

    def record(self) -> None:
        self.is_open = True

    def synchronize(self) -> None:
        self.n_waits += self.is_open
        self.is_open = False


def test_a_pinned_buffer_is_used_again_only_when_its_copy_is_done() -> None:
    events: list[Event] = []

    def event() -> Event:
        events.append(Event())
        return events[-1]

    ring = PinnedRing(lambda n: torch.zeros(n, dtype=torch.uint8), event)
    places = []
    for _ in range(RING):
        buffer, done = ring.take(100)
        done.record()
        places.append(buffer.data_ptr())
    assert len(set(places)) == RING and not any(each.n_waits for each in events)
    again, _ = ring.take(200)
    assert again.data_ptr() == places[0] and events[0].n_waits == 1 and events[1].n_waits == 0
    assert ring.take(5000)[0].data_ptr() not in places, "another size has buffers of its own"


def test_a_buffer_of_results_is_lent_until_they_are_read() -> None:
    loans = PinnedLoans(lambda n: torch.zeros(n, dtype=torch.uint8), Event)
    like = torch.arange(6).view(2, 3)
    lent = [loans.take(like) for _ in range(RING + 3)]
    for n, one in enumerate(lent):
        one.target.copy_(like + n)
        one.event.record()
    for n, one in enumerate(lent):
        assert one.wait().tolist() == (like + n).tolist()
    place = lent[-1].target.data_ptr()
    assert loans.take(like).target.data_ptr() == place, "it is used again"


class Noted:
    """Captured work."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


@pytest.mark.parametrize(("use", "n_captured"), [("auto", 1), ("always", 2), ("never", 0)])
def test_which_work_is_captured(use: Any, n_captured: int) -> None:
    """By the knob cuda.graphs: each time that work comes with its key it is done once, captured or not."""
    captured: list[Any] = []

    def noted(work: Callable[[], None]) -> Noted:
        captured.append(work)
        return Noted(work)

    graphs = Graphs(use, noted)
    done = Counter[str]()
    for n in range(1, 5):
        for name, is_decode in (("decode", True), ("prefill", False)):
            graphs.run(name, partial(done.update, [name]), is_decode=is_decode)
        assert done == {"decode": n, "prefill": n}
        assert len(captured) == (n_captured if n > 1 else 0), "the first time as it is"
    graphs.forget()
    graphs.run("decode", partial(done.update, ["decode"]), is_decode=True)
    assert len(captured) == n_captured and done["decode"] == 5


def test_many_arrays_in_one() -> None:
    packed = PackedArrays({"ids": (3,), "none": (2, 0), "shares": (2, 2)}, frozenset({"shares"}))
    whole = np.zeros(packed.size, dtype=np.int32)
    arrays = packed.arrays(whole)
    arrays["ids"][:], arrays["shares"][:] = [1, 2, 3], [[0.5, 1], [2, 4]]
    tensors = packed.tensors(torch.from_numpy(whole))
    assert tensors["ids"].tolist() == [1, 2, 3] and tensors["shares"].tolist() == [[0.5, 1], [2, 4]]
    assert (
        tensors["none"].shape == (2, 0) and tensors["shares"].data_ptr() % 16 == torch.from_numpy(whole).data_ptr() % 16
    )
    assert [power_of_two(n) for n in (0, 1, 2, 3, 64, 65)] == [0, 1, 2, 4, 64, 128]


def plan(**more: Any) -> planner.MemoryPlan:
    asked: dict[str, Any] = {"free": 2000 * MIB, "memory_mib": 0, "memory_fraction": 0.5, "n_outputs": 8}
    return planner.plan(ArraySource(tiny()), **asked | {"has_graphs": False} | more)


def test_the_plan_counts_all_that_is_made() -> None:
    made = plan()
    source = ArraySource(tiny())
    packed = sum(t.nbytes for name, t in source.tensors.items() if t.ndim > 1)
    assert made.own.weights == packed and made.available == 1000 * MIB
    assert made.own.outputs == 8 * 4 * (97 + 3 + 64)
    assert made.left_for_kv == made.available - made.fixed > 0
    assert plan(memory_mib=700).available == 700 * MIB
    assert plan(memory_mib=9000).available == 2000 * MIB, "no more than there is"
    assert plan(has_graphs=True).fixed - made.fixed == planner.GRAPH_BYTES
    assert "n_outputs_max 8" in made.text() and "are left for keys and values" in made.text()
    with_drafter = plan(drafter=ArraySource(tiny(n_layers=1)))
    assert 0 < with_drafter.drafter < made.fixed
    assert with_drafter.left_for_kv == made.left_for_kv - with_drafter.drafter
    assert f"draft model {with_drafter.drafter >> 20}, adapters 0" in with_drafter.text()


def test_what_cannot_fit_is_refused_with_numbers_and_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"doesn't fit: \d+ MiB are needed .*cuda.memory_mib"):
        plan(memory_mib=100)
    with pytest.raises(ConfigError, match="leave the draft model out"):
        plan(memory_mib=600, drafter=ArraySource(tiny()))


def options(device: int) -> BackendOptions:
    return BackendOptions(CpuSettings(threads=1), CudaSettings(device=device))


def test_it_is_made_by_name_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert choose("auto") != "cuda"
    with caplog.at_level(logging.INFO):
        made = make_backend("cuda", ArraySource(tiny()), options(factory.NO_CARD))
    assert made.info.name == "cuda" and "no GPU: plain operations" in made.info.detail
    assert not made.info.overlaps and made.info.kv_memory_bytes is None
    assert "device memory in MiB: weights" in caplog.text


def test_no_layers_on_the_gpu_is_no_gpu() -> None:
    none = BackendOptions(CpuSettings(threads=1), CudaSettings(device=0, gpu_layers=0))
    assert "no GPU: plain operations" in make_backend("cuda", ArraySource(tiny()), none).info.detail


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_card_it_says_so() -> None:
    with pytest.raises(ConfigError, match=r"cuda.device=0: torch finds no GPU .*--backend cpu"):
        make_backend("cuda", ArraySource(tiny()), options(0))


def test_what_it_cannot_run_is_refused_before_weights_are_read() -> None:
    with pytest.raises(UnsupportedModel, match="isn't causal"):
        factory.check(ArraySource(tiny(altered(BASE, causal=False))))


def test_an_engine_is_built_on_it(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=256)
    config = Config.of({"engine.backend": "cuda", "cuda.device": factory.NO_CARD, "kv_cache.dtype": "fp8"})
    built = build_engine(str(model), "m", config.for_engine(), lambda message: None, lambda message: None)
    built.loop.close()
    assert (built.info.backend, built.info.kv_dtype) == ("cuda", "fp8")
