"""Each family's logits equal those of transformers, from files as it saves them and as they are published."""

from __future__ import annotations

import lzma
import random
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.lowering import refuse_what_we_lack
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.cli._model_facts import model_facts
from imp_server.core import InvalidModel, UnsupportedModel, UserFault
from imp_server.models import opening
from imp_server.models.opening import families_by_model_type, open_model
from imp_server.models.source import CheckpointSource, GgufSource
from imp_server.models.tensor_names import FUSED
from imp_server.weights.checkpoint import Checkpoint, TextTensors
from imp_server.weights.gguf import GgufFile

from tests.backends.driver import Driver
from tests.models.cases_dense import LONGROPE
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


@cache
def gguf(name: str, base: Path) -> Path:
    path = base / f"{name.replace(' ', '-')}.gguf"
    path.write_bytes(lzma.decompress(file_of(name).read_bytes()))
    return path


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
    _, wanted, ids = files(name, base)
    source = open_model(gguf(name, base))
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


@pytest.mark.parametrize(("served", "which"), [(0, "long"), (65, "long"), (64, "short"), (9, "short")])
def test_the_context_that_is_served_chooses_the_rope_s_factors(served: int, which: str, base: Path) -> None:
    folder, _, _ = files("phi4-mini", base)
    wanted = LONGROPE[f"{which}_factor"]
    for path in (folder / "published", gguf("phi4-mini", base)):
        (rope,) = open_model(path, served).architecture.ropes()
        assert rope.scaling.frequency_factors == pytest.approx(wanted)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_cpu])
def test_the_cpu_backend(name: str, base: Path) -> None:
    folder, wanted, _ = files(name, base)
    backend = CpuBackend(open_model(folder / "published"), n_threads=1)
    try:
        got = Driver(backend).logits(IDS, 20)
        np.testing.assert_array_equal(Driver(backend).logits(IDS, N_IDS), got)
    finally:
        backend.close()
    twin = TwinModel(open_model(folder / "published")).logits(np.array(IDS))
    np.testing.assert_allclose(got, twin, rtol=1e-5, atol=1e-5 * np.abs(twin).max())
    assert error(got, wanted) <= CPU_TOLERANCE
    best = np.sort(wanted, axis=1)
    sure = best[:, -1] - best[:, -2] > 2 * CPU_TOLERANCE * np.abs(wanted).max()
    assert (got.argmax(1) == wanted.argmax(1))[sure].all()


@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "gemma4 experts"])
def test_neither_threads_nor_chunks_change_what_is_beside_the_halves(name: str, base: Path) -> None:
    """What ids say to layers, streams, experts beside a dense half: few rows, blocks of many, all threads together."""
    folder, _, _ = files(name, base)
    found = []
    for n_threads in (1, 3):
        backend = CpuBackend(open_model(folder / "published"), n_threads=n_threads)
        try:
            found += [Driver(backend).logits(IDS, chunk) for chunk in (N_IDS, 16, 1)]
        finally:
            backend.close()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("name", CASES)
def test_what_show_says_of_it(name: str, base: Path) -> None:
    """As docs/models.md has it: it is supported, on both backends."""
    folder, _, _ = files(name, base)
    facts = model_facts(folder / "published")
    assert not facts.problem and facts.architecture in families_by_model_type()
    refuse_what_we_lack(open_model(folder / "published").architecture)


class Damaged(TextTensors):
    """A checkpoint without one of its tensors, or with one of another shape."""

    def __init__(self, whole: Checkpoint, /, dropped: str = "", misshapen: str = "") -> None:
        super().__init__(whole)
        self._packed.pop(dropped, None)
        self._misshapen = misshapen

    def shape(self, name: str) -> tuple[int, ...]:
        *rest, last = super().shape(name)
        return (*rest, last + 16) if name == self._misshapen else (*rest, last)

    def data(self, name: str) -> NoReturn:
        raise AssertionError(f"{name} is read before the model is checked")

    content = data


@pytest.mark.parametrize("name", CASES)
def test_a_tensor_that_is_missing_or_misshapen_is_named(name: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, and before any weight is read."""
    folder, _, _ = files(name, base)
    folder /= "published"
    source = open_model(folder)
    assert isinstance(source, CheckpointSource)
    for damage, victim, ours in damages(name, source):
        with monkeypatch.context() as patch:
            patch.setattr(opening, "text_part", partial(Damaged, **{damage: victim}))
            check_it_is_named(folder, victim, ours)


class DamagedGguf(GgufFile):
    """The same of a GGUF file."""

    def __init__(self, path: Path, /, dropped: str = "", misshapen: str = "") -> None:
        super().__init__(path)
        self.tensors.pop(dropped, None)
        if misshapen:
            *rest, last = self.tensors[misshapen].shape
            self.tensors[misshapen] = self.tensors[misshapen]._replace(shape=(*rest, last + 16))

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        assert name.startswith("rope_"), f"{name} is read before the model is checked"
        return super().data(name)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_gguf])
def test_a_gguf_s_tensor_that_is_missing_or_misshapen_is_named(
    name: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf(name, base)
    source = open_model(path)
    assert isinstance(source, GgufSource)
    for damage, victim, ours in damages(name, source):
        with monkeypatch.context() as patch:
            patch.setattr(opening, "GgufFile", partial(DamagedGguf, **{damage: victim}))
            check_it_is_named(path, victim, ours)


def damages(name: str, source: CheckpointSource | GgufSource) -> list[tuple[str, str, str]]:
    """Two of its tensors: what happens to each, its name in the file, and ours."""
    read = {theirs: ours for ours, place in source.places.items() for theirs in place.names}
    read.pop("output.weight", None)  # a GGUF file without one has the embedding in its place
    chosen = random.Random(name).sample(sorted(read), 2)
    return [(damage, victim, read[victim]) for damage, victim in zip(("dropped", "misshapen"), chosen, strict=True)]


def check_it_is_named(path: Path, victim: str, ours: str) -> None:
    """Where one layer tells how all are made, the next one's is what doesn't fit; so with a matrix's bias."""
    with pytest.raises(UserFault) as caught:
        open_model(path)
    assert isinstance(caught.value, InvalidModel | UnsupportedModel)
    told, bare = str(caught.value), ours.removesuffix(".bias")
    assert "\n" not in told and len(told) < 400
    parts = [f"'{bare.rpartition('.')[0]}.{part}'" for stem in FUSED.values() for part in stem]
    kinds = [bare, victim, victim.removesuffix(".weight").rpartition(".")[2], *parts, bare.rpartition(".")[2]]
    assert any(kind in told for kind in kinds), (victim, told)
