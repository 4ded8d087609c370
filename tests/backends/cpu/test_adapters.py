"""Rows under adapters: bit by bit as the twin has it, and independent of who stands beside them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from imp_server.backends.base import WANT_PROMPT_LOGITS, AdapterShare, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.models.adapters import Addition, adapted_names
from imp_server.models.shapes import expected_shapes
from imp_server.native import usable_isas

from tests.backends.cpu.running import open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource
from tests.backends.driver import logits_of

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
ISAS = [isa for isa in usable_isas() if isa != "avxvnni"]
BY_NAME = {variant.name: variant for variant in VARIANTS}


def drawn(source: SyntheticSource, seed: int, share: float = 1.0) -> dict[str, Addition]:
    """An adapter of `share` of the matrices, of ranks that are multiples of nothing."""
    rng = np.random.default_rng(seed)
    shapes = expected_shapes(source.architecture)
    adapter: dict[str, Addition] = {}
    for name in adapted_names(shapes):
        rank = int(rng.integers(1, 10))
        if rng.random() < share:
            n_out, n_in = shapes[name]
            a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((rank, n_in), (n_out, rank)))
            adapter[name] = Addition(a * np.float32(n_in**-0.5), b * np.float32(0.2), float(rng.uniform(0.5, 2)))
    return adapter


def ids_of(source: SyntheticSource, n: int, seed: int = 1) -> Ids:
    return np.random.default_rng(seed).integers(0, source.architecture.vocab_size, n)


def logits(backend: CpuBackend, ids: Ids, chunk: int, *adapters: AdapterShare, row: int = 0) -> Floats:
    wanted = StepRow(WANT_PROMPT_LOGITS, adapters=adapters)
    tables = table_of(row, 128, len(backend.architecture.cache_groups))
    parts = [(ids[at : at + chunk], at) for at in range(0, len(ids), chunk)]
    return np.concatenate([logits_of(backend.run(step_of([(part, at, tables, wanted)])).rows[0]) for part, at in parts])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["llama", "gemma", "odd sizes", "side by side", "experts", "latents"])
def test_logits_equal_the_twins(name: str, isa: str) -> None:
    source = SyntheticSource(BY_NAME[name].architecture, BY_NAME[name].types)
    first, second = drawn(source, 1), drawn(source, 2, 0.5)
    ids = ids_of(source, 41)
    backend = open_backend(source, isa=isa)
    one, two = backend.add_adapter(first), backend.add_adapter(second)
    got = logits(backend, ids, 41, AdapterShare(one, 0.7), AdapterShare(two, -1.3))
    want = TwinModel(source, has_fma=isa != "portable", adapters=[(first, 0.7), (second, -1.3)]).logits(ids)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    bare = logits(backend, ids, 41)
    assert np.abs(bare - want).max() > 0.05 * np.abs(want).max()
    backend.close()


@pytest.mark.parametrize("name", ["gemma", "experts", "latents"])
def test_rows_are_independent(name: str) -> None:
    """Alone, in chunks, on two threads, by blocks of a wide step, and among rows with other adapters, or none."""
    source = SyntheticSource(BY_NAME[name].architecture, BY_NAME[name].types)
    lone, many = open_backend(source), open_backend(source, n_threads=2)
    adapters = [drawn(source, 1), drawn(source, 2, 0.5)]
    for backend in (lone, many):
        assert [backend.add_adapter(adapter) for adapter in adapters] == [1, 2]
    sets: list[tuple[AdapterShare, ...]] = [
        (),
        (AdapterShare(1, 1.0),),
        (AdapterShare(1, 1.0), AdapterShare(2, 0.5)),
        (AdapterShare(2, 0.5),),
    ]
    ids = ids_of(source, 40)
    want = [logits(lone, ids, 40, *own) for own in sets]
    assert len({one.tobytes() for one in want}) == len(sets)
    np.testing.assert_array_equal(logits(many, ids, 7, *sets[2]), want[2])
    np.testing.assert_array_equal(logits(many, ids, 1, *sets[1]), want[1])
    for n in (4, 9, 14):  # the last one takes its threads through blocks of rows
        rows = [StepRow(WANT_PROMPT_LOGITS, adapters=sets[i % 4]) for i in range(n)]
        tables = [table_of(i, 128, len(source.architecture.cache_groups)) for i in range(n)]
        parts = [(ids[:39], 0, tables[i], rows[i]) for i in range(n)]
        first = many.run(step_of(parts)).rows
        last = many.run(step_of([(ids[39:], 39, tables[i], rows[i]) for i in range(n)])).rows
        for i in range(n):
            np.testing.assert_array_equal(np.concatenate([logits_of(first[i]), logits_of(last[i])]), want[i % 4])
    lone.close()
    many.close()


def test_slots_are_used_again() -> None:
    source = SyntheticSource(BY_NAME["llama"].architecture, BY_NAME["llama"].types)
    backend = open_backend(source)
    ids = ids_of(source, 9)
    assert backend.add_adapter(drawn(source, 1)) == 1
    before = logits(backend, ids, 9, AdapterShare(1, 1.0))
    backend.unload_adapter(1)
    assert backend.add_adapter(drawn(source, 2)) == 1
    assert (logits(backend, ids, 9, AdapterShare(1, 1.0)) != before).any()
    np.testing.assert_array_equal(logits(backend, ids, 9, AdapterShare(1, 0.0)), logits(backend, ids, 9))
    backend.close()


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("name", ["llama", "gemma", "latents"])
def test_what_a_broken_row_leaves_in_its_blocks_reaches_nobody(name: str, kv: str) -> None:
    """Its keys and values are no numbers, and the row after it sees a part of a block only."""
    source = SyntheticSource(BY_NAME[name].architecture, BY_NAME[name].types)
    broken = {name: Addition(one.a, one.b * np.float32(1e30), 1.0) for name, one in drawn(source, 1).items()}
    backend = open_backend(source, kv=kv)
    backend.add_adapter(broken)
    ids = ids_of(source, 41)
    want = logits(backend, ids, 41)
    for chunk in (41, 7, 1):
        assert not np.isfinite(logits(backend, ids_of(source, 100), 50, AdapterShare(1, 1.0))).all()
        np.testing.assert_array_equal(logits(backend, ids, chunk), want)
    backend.close()
