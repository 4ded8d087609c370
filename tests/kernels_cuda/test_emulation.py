"""The emulation catches a planted fault of each kind, under every schedule, and lets what is right pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from imp_server.backends.cuda.launching import KernelFault, KernelSource

from tests.kernels_cuda.emulated import ORDERS, Emulator

PLANTED = KernelSource("planted.cu")
FAULTS = {
    "out_of_bounds": "a read of 4 bytes at 256 of argument 0, which has 256",
    "into_the_next_buffer": "of argument 1, which has 256",
    "read_only": "argument 0, which is read only",
    "missing_barrier": "nothing orders two accesses|nobody has written",
    "missing_second_barrier": "nothing orders two accesses",
    "missing_warp_barrier": "nothing orders two accesses|nobody has written",
    "unwritten_shared": "byte 252 of the shared array some, which nobody has written",
    "divergent_barrier": "meet at two barriers",
    "barrier_that_some_miss": "which have ended will not reach|have ended while others wait",
    "divergent_shuffle": "names a lane that has ended|waits for a lane that has ended",
    "parted_lanes": "lanes of a mask part",
    "lane_outside_of_mask": "lane 20, which the mask lacks",
    "misaligned": "isn't aligned to 16",
    "missing_wait": "which nobody has written",
    "wait_without_barrier": "nothing orders two accesses|nobody has written",
    "copy_over_what_is_read": "nothing orders two accesses",
    "too_much_shared": "102400 bytes of shared memory, more than the 101376",
    "blocks_that_meet": "nothing orders two accesses",
}


def emulator(order: str, seed: int = 0) -> Emulator:
    return Emulator(order=order, seed=seed, folder=Path(__file__).parent)  # type: ignore[arg-type]


def buffers() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, generator=torch.Generator().manual_seed(1)), torch.full((64,), float("nan"))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", FAULTS)
def test_a_planted_fault_is_caught(kernel: str, order: str) -> None:
    x, y = buffers()
    grid = (2 if kernel == "blocks_that_meet" else 1, 1, 1)
    with pytest.raises(KernelFault, match=FAULTS[kernel]):
        emulator(order, seed=5).run(PLANTED, [(kernel, grid, 64, [x, y], 0)], read_only=[x])


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_right_passes(order: str) -> None:
    x, y = buffers()
    halves = x.flip(0).view(2, 32)
    emulator(order).launch(PLANTED, "right", (1, 1, 1), 64, [x, y])
    torch.testing.assert_close(y.view(2, 32), (halves.sum(1) + halves[:, 3])[:, None].expand(2, 32))
    emulator(order).launch(PLANTED, "awaited_copy", (1, 1, 1), 64, [x, y])
    assert torch.equal(x, y)
    emulator(order).launch(PLANTED, "warp_barrier_is_enough", (1, 1, 1), 64, [x, y])
    assert torch.equal(x.view(32, 2).flip(1), y.view(32, 2))
    counts = torch.zeros(64, dtype=torch.int32)
    emulator(order).launch(PLANTED, "blocks_that_add", (5, 1, 1), 64, [x.abs() + 1, counts])
    assert counts.tolist() == [5] * 64


def test_a_register_that_nobody_set_holds_nonsense() -> None:
    x, y = buffers()
    emulator("lowest").launch(PLANTED, "unset_register", (1, 1, 1), 64, [x, y])
    wrong = torch.arange(64) % 8 == 3
    assert torch.equal(y[~wrong], x[:8].repeat(8)[~wrong])
    assert not (y[wrong].abs() < 1e30).any()
    unoptimised = Emulator("lowest", folder=Path(__file__).parent, level="-O0")
    unoptimised.launch(PLANTED, "unset_scalar", (1, 1, 1), 64, [x, y])
    assert not (y.abs() < 1e30).any()


@pytest.mark.parametrize("order", ORDERS)
def test_a_dependent_launch_begins_before_what_comes_before_it_writes(order: str) -> None:
    x, y = buffers()
    for kernel, is_right in (("dependent", True), ("dependent_without_wait", False)):
        middle = torch.full_like(x, float("nan"))
        launches = [("doubled", (1, 1, 1), 64, [x, middle], 0), (kernel, (1, 1, 1), 64, [middle, y], 0)]
        emulator(order).run(PLANTED, launches, dependent=True)
        assert torch.equal(y, 2 * x + 1) is is_right
        assert torch.equal(middle, 2 * x)


def test_other_schedules_are_other_schedules() -> None:
    """And the same seed is the same one."""
    told = set()
    for seed in (1, 1, 2, 3, 4):
        x, y = buffers()
        with pytest.raises(KernelFault) as caught:
            emulator("random", seed).launch(PLANTED, "missing_barrier", (1, 1, 1), 64, [x, y])
        told.add((seed, str(caught.value)))
    assert len(told) == 4 and len({text for _, text in told}) > 1


def test_arguments_are_counted() -> None:
    x, y = buffers()
    with pytest.raises(KernelFault, match="another number of arguments"):
        emulator("lowest").launch(PLANTED, "right", (1, 1, 1), 64, [x, y, 1])
    with pytest.raises(KernelFault, match="there is no kernel wrong"):
        emulator("lowest").launch(PLANTED, "wrong", (1, 1, 1), 64, [x, y])
