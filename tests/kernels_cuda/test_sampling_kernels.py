"""The kernels of sampling against their plain twin: the same ids, the same walk, the same slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from imp_server.backends.cuda.kernels import KernelOperations, Scratch
from imp_server.backends.cuda.operations import Floats, Ints, SampleInputs, SampleOutputs, SlotState
from imp_server.backends.cuda.plain.operations import PlainOperations

from tests.kernels_cuda.emulated import ORDERS, Emulator
from tests.kernels_cuda.made_up import normal, seeded

PLAIN = PlainOperations()
Tensor = torch.Tensor


@dataclass
class Case:
    """`temperatures`, `top_k` ... by row."""

    width: int = 1
    vocab: int = 700
    n_biases: int = 0
    uses_history: bool = False
    masked: bool = False
    temperatures: tuple[float, ...] = (1.0, 0.7, 0.0, 2.0)
    top_k: tuple[int, ...] = (0, 0, 0, 0)
    top_p: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    min_p: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    kind: str = "random"


def logits_of(case: Case, seed: int) -> Tensor:
    logits = 3 * normal(seeded(seed), 4 * case.width, case.vocab)
    if case.kind == "ties":
        logits = logits.round()
    if case.kind == "equal":
        logits[:] = 0.25
    if case.kind == "awkward":
        logits[0, 5] = float("nan")
        logits[1, :] = -float("inf")
        logits[2, 3:] = -float("inf")
        logits[2, :3] = -0.0
        logits[3] *= 1e3
    return logits


def inputs_of(case: Case, seed: int) -> SampleInputs:
    g, n = seeded(seed), 4
    ints = torch.zeros(n, len(Ints), dtype=torch.int32)
    ints[:, Ints.N_POSITIONS] = torch.tensor([case.width, 1, max(1, case.width - 1), 0 if case.width > 1 else 1])
    ints[:, Ints.MASK_FIRST] = torch.tensor([0, -1, case.width, -1]) if case.masked else -1
    ints[:, Ints.N_HISTORY] = torch.tensor([12, 30, 7, 21])
    ints[:, Ints.N_PROMPT] = torch.tensor([5, 30, 0, 3])
    ints[:, Ints.REPEAT_LAST_N] = torch.tensor([0, 8, 4, 64])
    ints[:, Ints.TOP_K] = torch.tensor(case.top_k)
    ints[:, Ints.SEED_LOW : Ints.CHOICE] = torch.randint(-(2**31), 2**31, (n, 2), generator=g).int()
    ints[:, Ints.CHOICE] = torch.arange(n)
    ints[:, Ints.POSITION] = torch.tensor([0, 5, 1000, 77])
    ints[:, Ints.COUNTS] = torch.tensor([1, 1, 0, 1]) if case.uses_history else 0
    floats = torch.zeros(n, len(Floats), dtype=torch.float64)
    for column, values in (("TEMPERATURE", case.temperatures), ("TOP_P", case.top_p), ("MIN_P", case.min_p)):
        floats[:, Floats[column]] = torch.tensor(values, dtype=torch.float64)
    floats[:, Floats.REPETITION], floats[:, Floats.PRESENCE], floats[:, Floats.FREQUENCY] = 1.3, 0.2, 0.1
    bias_ids = torch.stack([torch.randperm(case.vocab, generator=g)[: case.n_biases] for _ in range(n)]).int()
    biases = 4 * normal(g, n, case.n_biases)
    if case.n_biases:
        bias_ids[:, -1], biases[:, -2:] = bias_ids[:, -2], -float("inf")
        bias_ids[1, 0] = -1
    words = -(-case.vocab // 32)
    masks = torch.randint(-(2**31), 2**31, (4 * case.width, words), generator=g).int()
    masks[0, 4:] = 0
    drafts = torch.randint(0, case.vocab, (n, case.width - 1), generator=g).int()
    slots = torch.tensor([3, 0, 1, 5], dtype=torch.int32)
    draws = any(t > 0 for t in case.temperatures)
    return SampleInputs(ints, floats, slots, drafts, bias_ids, biases, masks, case.uses_history, 32, draws, -1)


def slots_of(case: Case) -> SlotState:
    last = torch.full((7,), 99, dtype=torch.int32)
    return SlotState(last, torch.randint(0, 40, (7, 33), generator=seeded(8)).int())


def outputs(width: int) -> SampleOutputs:
    def ints(*shape: int) -> Tensor:
        return torch.full(shape, -7, dtype=torch.int32)

    row = (ints(4), ints(4), ints(4))
    return SampleOutputs(ints(4, width), *row, torch.zeros(4, width, 0), ints(4, width), ints(4, width, 0))


def told(out: SampleOutputs) -> list[tuple[list[int], int, int]]:
    rows = zip(out.tokens.tolist(), out.n_tokens.tolist(), out.n_accepted.tolist(), out.flags.tolist())
    return [(tokens[:n], accepted, flags) for tokens, n, accepted, flags in rows]


def run(operations: object, case: Case, seed: int, agree: bool) -> tuple[object, list[int], Tensor]:
    inputs, slots, out = inputs_of(case, seed), slots_of(case), outputs(case.width)
    if agree and case.width > 1:  # drafts that are what is sampled, as far as the first guess goes
        guess, state = outputs(case.width), slots_of(case)
        PLAIN.sample(logits_of(case, seed), inputs, state, guess)
        inputs.drafts[:, 0] = guess.tokens[:, 0]
    operations.sample(logits_of(case, seed), inputs, slots, out)  # type: ignore[attr-defined]
    return told(out), slots.last[:-1].tolist(), slots.histories[:-1]


CASES = {
    "plain": Case(),
    "everything": Case(3, 300, 4, True, True, top_k=(20, 0, 5, 3), top_p=(0.9, 0.5, 0.9, 1.0), min_p=(0, 0.1, 0.2, 0)),
    "top_k": Case(top_k=(1, 3, 0, 699)),
    "top_p": Case(top_p=(0.0, 0.3, 0.99, 0.9999)),
    "both": Case(top_k=(50, 3, 9, 1000), top_p=(0.5, 0.9, 0.1, 0.7)),
    "min_p": Case(min_p=(0.1, 1.0, 0.5, 0.001)),
    "ties": Case(kind="ties", top_k=(40, 7, 0, 2), top_p=(1.0, 0.8, 0.9, 0.5)),
    "equal": Case(kind="equal", top_k=(0, 7, 0, 2), top_p=(0.5, 1.0, 1.0, 0.9)),
    "awkward": Case(kind="awkward", top_k=(0, 5, 2, 9), top_p=(0.5, 0.5, 0.9, 0.9), temperatures=(1.0, 1.0, 1.0, 1e-3)),
    "greedy": Case(2, 300, 5, True, True, (0.0, 0.0, 0.0, 0.0)),
}  # fmt: skip
USUAL = ("everything", "both", "ties", "awkward", "greedy")


@pytest.mark.parametrize("name, order", [
    pytest.param(name, order, marks=() if name in USUAL and order == ORDERS[i % 3] else pytest.mark.slow)
    for i, name in enumerate(CASES) for order in ORDERS
])  # fmt: skip
def test_sample(name: str, order: str) -> None:
    case = CASES[name]
    for seed in range(2 if name in USUAL else 12):
        emulator = Emulator(order=order, seed=seed)  # type: ignore[arg-type]
        ours = run(KernelOperations(PLAIN, emulator, Scratch(torch.device("cpu"))), case, seed, agree=seed % 2 == 0)
        twin = run(PLAIN, case, seed, agree=seed % 2 == 0)
        assert ours[:2] == twin[:2], seed
        assert torch.equal(ours[2], twin[2])
        assert emulator.n_launches >= 4


def test_take_best() -> None:
    case = Case(3)
    inputs = inputs_of(case, 1)
    best = torch.tensor([[4, 5, 6], [7, 8, 9], [-1, 2, 3], [1, 1, 1]], dtype=torch.int32).flatten()
    inputs.drafts[0] = torch.tensor([4, 9])
    results = []
    emulator = Emulator()
    for operations in (PLAIN, KernelOperations(PLAIN, emulator, Scratch(torch.device("cpu")))):
        slots, out = slots_of(case), outputs(3)
        operations.take_best(best, inputs, slots, out)
        results.append((told(out), slots.last[:-1].tolist()))
    assert results[0] == results[1]
    assert results[0][0] == [([4, 5], 1, 0), ([7], 0, 0), ([], 0, 2), ([], 0, 0)]
    assert emulator.n_launches == 1


def test_the_noise_is_that_of_the_law() -> None:
    """Drawn ids are spread as the law spreads them: by the counters of a row, its position and its choice."""
    from imp_server.core import SamplingParams
    from imp_server.decode.sampling import sample as law

    case = Case(temperatures=(1.0, 0.7, 1.5, 2.0))
    for seed in range(3):
        inputs = inputs_of(case, seed)
        ours, _, _ = run(KernelOperations(PLAIN, Emulator(seed=seed), Scratch(torch.device("cpu"))), case, seed, False)
        ints = inputs.ints.tolist()
        for row in range(4):
            low, high = (ints[row][c] & 0xFFFFFFFF for c in (Ints.SEED_LOW, Ints.SEED_HIGH))
            params = SamplingParams(temperature=case.temperatures[row], top_k=0, seed=high << 32 | low)
            logits = logits_of(case, seed)[row].numpy().astype(np.float32)
            expected = law(logits, params, row, ints[row][Ints.POSITION], 0.0)
            assert ours[row][0] == [expected.id]  # type: ignore[index]
