"""Models under adapters, from PEFT's folders and from llama.cpp's files of them, equal what PEFT makes of them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from imp_server.backends.base import WANT_PROMPT_LOGITS, AdapterShare, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.models.adapters import Adapter, Addition, open_adapter
from imp_server.models.opening import open_model
from imp_server.models.source import ModelSource

from tests.backends.driver import Driver
from tests.models.family_cases import CASES
from tests.models.lora_files import LORAS, N_GREEDY, N_POSITIONS, unpack
from tests.models.oracle import IDS, MOVES, TOLERANCE, Floats, error, model_of, oracle_logits, write_checkpoint
from tests.models.test_families import CPU_TOLERANCE, gguf

Backend = CpuBackend | ReferenceBackend
IN_GGUF = [name for name, case in LORAS.items() if CASES[case.model].has_gguf and "use_rslora" not in case.config]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@cache
def checkpoint(name: str, base: Path) -> Path:
    model = LORAS[name].model
    folder = base / model.replace(" ", "-")
    if not folder.exists():
        write_checkpoint(CASES[model], model_of(CASES[model]), folder, published=True)
    return folder


@cache
def files(name: str, base: Path) -> tuple[Path, Floats, list[int]]:
    """The adapter's folder, PEFT's logits at the last positions, and the ids that it goes on with."""
    folder = unpack(name, base / f"{name}.lora")
    expected = np.load(folder / "expected.npz")
    return folder, expected["logits"], expected["greedy"].tolist()


def run(backend: Backend, *adapters: AdapterShare, n: int = N_GREEDY) -> tuple[Floats, list[int]]:
    """Logits of all positions, and ids that follow."""
    driver = Driver(backend)
    lane, ids = driver.sequence(len(IDS) + n), list(IDS)
    for _ in range(n):
        row = StepRow(wants=WANT_PROMPT_LOGITS, adapters=adapters)
        driver.run([(lane, ids[lane.n_done :])], [row])
        ids.append(int(lane.logits[-1][-1].argmax()))
    return lane.logits[0], ids[len(IDS) :]


def check(backend: Backend, path: Path, wanted: Floats, greedy: list[int], tolerance: float) -> None:
    slot = backend.load_adapter(str(path))
    bare, _ = run(backend, n=1)
    got, ids = run(backend, AdapterShare(slot, 1.0))
    assert error(got[-N_POSITIONS:], wanted) <= tolerance
    assert error(bare[-N_POSITIONS:], wanted) > MOVES
    assert tolerance > TOLERANCE or ids == greedy


@pytest.mark.parametrize("name", LORAS)
def test_a_folder_of_peft(name: str, base: Path) -> None:
    folder, wanted, greedy = files(name, base)
    source = open_model(checkpoint(name, base))
    check(ReferenceBackend(source), folder, wanted, greedy, TOLERANCE)
    check(CpuBackend(source, n_threads=1), folder / "adapter_model.safetensors", wanted, greedy, CPU_TOLERANCE)


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_file_of_llama_cpp(name: str, base: Path) -> None:
    folder, wanted, greedy = files(name, base)
    path = gguf(LORAS[name].model, base)
    check(ReferenceBackend(open_model(path)), folder / "adapter.gguf", wanted, greedy, TOLERANCE)
    check(CpuBackend(open_model(path), n_threads=1), folder / "adapter.gguf", wanted, greedy, CPU_TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_it_is_what_merged_matrices_make(name: str, base: Path) -> None:
    """Two adapters at once, one of them taken away: transformers' model with W + scale b a in the place of W."""
    folder, _, _ = files(name, base)
    source = open_model(checkpoint(name, base))
    adapter = open_adapter(str(folder), source)
    model = model_of(CASES[LORAS[name].model])
    theirs = dict(model.named_parameters())
    for ours, addition in adapter.items():
        place = source.places[ours].name
        assert isinstance(place, str)
        theirs[place].data += theirs[place].new_tensor(0.25 * addition.scale * addition.b @ addition.a)
    backend = ReferenceBackend(source)
    one, two = backend.add_adapter(adapter), backend.add_adapter(adapter)
    got, _ = run(backend, AdapterShare(one, 1.0), AdapterShare(two, -0.75), n=1)
    assert error(got, oracle_logits(model, IDS)) <= TOLERANCE


def _mutants(adapter: Adapter) -> dict[str, Adapter]:
    """Each part left out, and those of the same shapes exchanged with their neighbours."""
    found: dict[str, Adapter] = {f"without {name}": {k: v for k, v in adapter.items() if k != name} for name in adapter}
    names = list(adapter)
    for one, other in pairwise(names):
        a, b = adapter[one], adapter[other]
        if a.a.shape == b.a.shape:
            found[f"a of {one}, {other}"] = {
                **adapter,
                one: Addition(b.a, a.b, a.scale),
                other: Addition(a.a, b.b, b.scale),
            }
        if a.b.shape == b.b.shape:
            found[f"b of {one}, {other}"] = {
                **adapter,
                one: Addition(a.a, b.b, a.scale),
                other: Addition(b.a, a.b, b.scale),
            }
    return found


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_every_part_counts(name: str, base: Path) -> None:
    folder, _, _ = files(name, base)
    backend = CpuBackend(open_model(checkpoint(name, base)), n_threads=1)
    adapter = open_adapter(str(folder), open_model(checkpoint(name, base)))
    whole, _ = run(backend, AdapterShare(backend.add_adapter(adapter), 1.0), n=1)
    for what, mutant in _mutants(adapter).items():
        slot = backend.add_adapter(mutant)
        got, _ = run(backend, AdapterShare(slot, 1.0), n=1)
        assert error(got, whole) > MOVES, what
        backend.unload_adapter(slot)


def _source(path: Path) -> ModelSource:
    return open_model(path)


def test_the_twin_of_the_cpu(base: Path) -> None:
    """Fused matrices, by the twin's own arithmetic."""
    folder, _, _ = files("phi3", base)
    source = _source(checkpoint("phi3", base))
    backend = CpuBackend(source, n_threads=1)
    got, _ = run(backend, AdapterShare(backend.load_adapter(str(folder)), 0.5), n=1)
    want = TwinModel(source, adapters=[(open_adapter(str(folder), source), 0.5)]).logits(np.array(IDS))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
