"""The whole engine with the kernels themselves, run on a CPU: any subset of them, the plain layer for the rest."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from imp_server.backends.cuda.kernels import KERNELS, KernelOperations, Scratch
from imp_server.backends.cuda.plain.operations import PlainOperations
from imp_server.backends.reference.backend import ReferenceBackend

from tests.backends.array_source import ArraySource
from tests.backends.cuda.running import PlainCuda
from tests.backends.cuda.test_engine import MODELS, WAYS, answers
from tests.backends.cuda.test_forward import IDS
from tests.backends.driver import Driver
from tests.kernels_cuda.emulated import Emulator, compiler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
]


def some(seed: int) -> list[str]:
    chance = Random(seed)
    return [name for name in KERNELS if chance.random() < 0.6]


def check(model: str, way: dict[str, Any], chosen: list[str], kv: str = "f32") -> int:
    """Launches."""
    emulator = Emulator(order="lowest")
    scratch = Scratch(torch.device("cpu"))  # ids are compared, so nothing may round what the plain layer doesn't
    ops = KernelOperations(PlainOperations(), emulator, scratch, chosen, n_processors=2, rounds=False)
    source = ArraySource(MODELS[model])
    found, _ = answers(PlainCuda(source, ops=ops, kv=kv), **way)
    plain = ReferenceBackend(source) if kv == "f32" else PlainCuda(source, kv=kv)
    assert found == answers(plain)[0]
    return emulator.n_launches


@pytest.mark.parametrize("way", WAYS)
def test_all_kernels_give_the_ids_of_the_reference(way: str) -> None:
    assert check("full", WAYS[way], list(KERNELS)) > 100


@pytest.mark.parametrize("model", ["windows", "sinks", "gemma", "experts"])
def test_so_they_do_in_every_kind_of_layer_that_they_know(model: str) -> None:
    assert check(model, WAYS["all"], list(KERNELS)) > 100


@pytest.mark.parametrize("seed", range(6))
def test_any_subset_of_kernels_serves(seed: int) -> None:
    check(("full", "experts", "windows")[seed % 3], WAYS["n-gram"], some(seed))


@pytest.mark.parametrize("model", ["full", "sinks"])
def test_with_tensor_cores_logits_are_off_by_what_bfloat16_is(model: str) -> None:
    """A prompt in a chunk that they take; the best id is the same wherever that is plain."""
    source, ids = ArraySource(MODELS[model]), IDS[:40]
    plain = Driver(PlainCuda(source, kv="bf16"))
    emulator = Emulator(order="lowest", sums="truncated")
    ops = KernelOperations(PlainOperations(), emulator, Scratch(torch.device("cpu")), n_processors=2)
    ours = Driver(PlainCuda(source, kv="bf16", ops=ops))
    want, got = plain.logits(ids, 37), ours.logits(ids, 37)
    bound = 2.0**-5 * np.abs(want).max()
    assert 0 < np.abs(got - want).max() <= bound
    best = np.sort(want, axis=1)
    is_plain = best[:, -1] - best[:, -2] > 2 * bound
    assert is_plain.any() and np.array_equal(got.argmax(1)[is_plain], want.argmax(1)[is_plain])


@pytest.mark.parametrize("kv", ["bf16", "int8", "fp8", "int4", "nvfp4"])
def test_kernels_and_plain_operations_round_the_cache_alike(kv: str) -> None:
    assert check("full", WAYS["plain"], list(KERNELS), kv) > 100
