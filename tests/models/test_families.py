"""Each family's logits equal those of transformers, from files as it saves them and as they are published."""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.cli._model_facts import model_facts
from imp_server.models.opening import open_model

from tests.backends.driver import Driver
from tests.models.family_cases import CASES
from tests.models.oracle import (
    IDS,
    N_IDS,
    TOLERANCE,
    Floats,
    check_logits,
    error,
    greedy,
    model_of,
    oracle_logits,
    write_checkpoint,
)
from tests.models.oracle_files import file_of

CPU_TOLERANCE = 5e-2
"""Keys and values are bf16 there."""


@cache
def files(name: str, base: Path) -> tuple[Path, Floats, list[int]]:
    """The folder of both checkpoints, the oracle's logits, and the ids that it goes on with."""
    folder = base / name.replace(" ", "-")
    model = model_of(CASES[name])
    for layout in ("saved", "published"):
        write_checkpoint(CASES[name], model, folder / layout, published=layout == "published")
    ids = list(IDS)
    for _ in range(3):
        ids.append(int(oracle_logits(model, ids)[-1].argmax()))
    return folder, oracle_logits(model, IDS), ids[N_IDS:]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize("name", CASES)
def test_a_published_checkpoint(name: str, base: Path) -> None:
    folder, wanted, ids = files(name, base)
    backend = ReferenceBackend(open_model(folder / "published"))
    check_logits(backend, wanted)
    assert greedy(backend, len(ids)) == ids


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_saved])
def test_a_checkpoint_as_transformers_saves_it_is_the_same_model(name: str, base: Path) -> None:
    folder, wanted, _ = files(name, base)
    saved = open_model(folder / "saved")
    assert saved.architecture == open_model(folder / "published").architecture
    assert error(Driver(ReferenceBackend(saved)).logits(IDS, N_IDS), wanted) <= TOLERANCE


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_gguf])
def test_a_gguf_file_by_llama_cpp_s_converter(name: str, base: Path) -> None:
    folder, wanted, ids = files(name, base)
    path = folder / "model.gguf"
    path.write_bytes(lzma.decompress(file_of(name).read_bytes()))
    source = open_model(path)
    backend = ReferenceBackend(source)
    assert error(Driver(backend).logits(IDS, N_IDS), wanted) <= TOLERANCE
    assert greedy(backend, len(ids)) == ids
    native = CpuBackend(source, n_threads=1)
    try:
        assert error(Driver(native).logits(IDS, N_IDS), wanted) <= CPU_TOLERANCE
    finally:
        native.close()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("phi4-mini", "longrope, its long factors"),
        ("phi4-mini short", "longrope, its short factors"),
        ("olmo3", "yarn, 4 times"),
        ("qwen3", ""),
    ],
)
def test_show_tells_how_the_context_is_extended(name: str, told: str, base: Path) -> None:
    folder, _, _ = files(name, base)
    facts = model_facts(folder / "published")
    assert facts.rope_scaling == told and not facts.problem


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_cpu])
def test_the_cpu_backend(name: str, base: Path) -> None:
    folder, wanted, _ = files(name, base)
    backend = CpuBackend(open_model(folder / "published"), n_threads=1)
    try:
        got = Driver(backend).logits(IDS, 20)
    finally:
        backend.close()
    twin = TwinModel(open_model(folder / "published")).logits(np.array(IDS))
    np.testing.assert_allclose(got, twin, rtol=1e-5, atol=1e-5 * np.abs(twin).max())
    assert error(got, wanted) <= CPU_TOLERANCE
    best = np.sort(wanted, axis=1)
    sure = best[:, -1] - best[:, -2] > 2 * CPU_TOLERANCE * np.abs(wanted).max()
    assert (got.argmax(1) == wanted.argmax(1))[sure].all()
