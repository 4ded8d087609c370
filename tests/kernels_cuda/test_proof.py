"""Kernels prove themselves: in the emulation all calls of a model are as their twins, and planted faults are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from imp_server.backends.base import KvSpec
from imp_server.backends.cuda.backend import CudaBackend
from imp_server.backends.cuda.kernel_choice import KernelChoice
from imp_server.backends.cuda.kernels import KERNELS
from imp_server.backends.cuda.operations import NormForm, SlotState
from imp_server.backends.cuda.proof.cases import NotingOperations, OperationCall
from imp_server.backends.cuda.proof.checking import CaseRun
from imp_server.backends.cuda.proof.prover import KernelProver, TimeLimits
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.models.architecture import Architecture

from tests.backends.array_source import ArraySource, tiny
from tests.backends.cuda.test_engine import MODELS, WAYS, answers
from tests.kernels_cuda import emulated_card
from tests.kernels_cuda.emulated import compiler
from tests.kernels_cuda.made_up import matrix, rows

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def by_hand() -> list[OperationCall]:
    """One call of each operation that has a fault planted, and of one that has none."""
    noting = NotingOperations()
    x, out, norm = torch.zeros(3, 64), torch.zeros(3, 64), NormForm(1e-5, torch.zeros(64))
    ints = torch.zeros(3, dtype=torch.int32)
    slots = SlotState(torch.zeros(4, dtype=torch.int32), torch.zeros(4, 8, dtype=torch.int32))
    noting.add_norm(x, out, 0.5, norm, torch.zeros(3, 64))
    noting.add(x, out, 0.5, None)
    noting.norm(x, norm, x)
    noting.embed(ints, rows([0, 1, 2], [1, 1, 1], 1, 8, 1), slots, matrix("Q4_K", 20, 64, 1), 1.0, out)
    noting.copy_blocks(torch.zeros((5, 64), dtype=torch.uint8), torch.zeros((2, 2), dtype=torch.int32))
    return noting.cases


def noted(architecture: Architecture, kv: str) -> list[OperationCall]:
    """All that a model asks for, at few shapes."""
    found: list[OperationCall] = []

    def prove(_: object, cases: Iterable[OperationCall]) -> None:
        found.extend(cases)

    card = emulated_card.card()
    choice = KernelChoice(
        card,
        emulated_card.opener(emulated_card.card),
        "auto",
        "tiny",
        prove=prove,
        rectangles=emulated_card.few_shapes,
    )
    backend = CudaBackend(ArraySource(architecture), card.device, kernels=choice)
    backend.allocate(KvSpec((16,) * len(architecture.cache_groups), kv))
    return found


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMP_HOME", str(tmp_path))


def test_what_is_wrong_with_a_kernel_is_told() -> None:
    card = emulated_card.planted(0, "never")
    said = {case.operation: CaseRun(case, card).fault() for case in by_hand()[2:]}
    assert said["copy_blocks"] == "" and said["embed"] == "the same launch made other bits"
    assert said["norm"].startswith("x: off by ")
    good = emulated_card.card()
    assert all(CaseRun(case, good).fault() == "" for case in by_hand())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("model", "kv"), [("full", "int8"), ("experts", "bf16"), ("sinks", "fp8"), ("gemma", "bf16")])
def test_all_calls_of_a_model_are_as_their_twins(model: str, kv: str) -> None:
    card = emulated_card.card()
    ran = Counter[str]()
    with torch.inference_mode():
        for case in noted(MODELS[model], kv):
            run = CaseRun(case, card)
            if run.sources:
                assert run.fault() == "", case
                ran[case.operation] += 1
    assert len(ran) >= 9


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_crash_and_a_hang_in_the_process_that_tries_them_condemn_these_alone() -> None:
    limits = TimeLimits(run=8.0)
    found = KernelProver(emulated_card.opener(emulated_card.planted), by_hand(), limits).verdict()
    assert found is not None and found.proved == ["copy_blocks"]
    assert found.condemned.pop("norm").startswith("x: off by ")
    assert found.condemned == {
        "add_norm": "the process died when it was run",
        "add": "no answer within 8 s when it was run",
        "embed": "the same launch made other bits",
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_engine_serves_with_what_has_proved_itself() -> None:
    """From the proof in a process of its own to the ids of the reference."""
    source = ArraySource(tiny())
    card, opener = emulated_card.card(), emulated_card.opener(emulated_card.card)
    choice = KernelChoice(card, opener, "auto", "tiny", rounds=False, rectangles=emulated_card.few_shapes)
    torch.set_num_threads(1)
    backend = CudaBackend(source, card.device, kernels=choice)
    backend.info = replace(backend.info, default_kv_dtype="f32")
    found, counters = answers(backend, **WAYS["plain"])
    assert not choice.condemned and len(choice.chosen) == 11 and set(choice.chosen) < set(KERNELS)
    assert counters["cuda_kernels_used"] == 11
    assert found == answers(ReferenceBackend(source))[0]
