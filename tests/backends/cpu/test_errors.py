"""What kernels answer has a name, which the server reports; a lack of memory or threads doesn't end the process."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from imp_server.backends.base import WANT_NOTHING, StepRow
from imp_server.backends.cpu.errors import KernelError, check
from imp_server.core import EngineFaulted, HostOutOfMemory

from tests.backends.cpu.running import open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource

LACKS = (KernelError.no_memory, KernelError.no_threads)


@pytest.mark.parametrize("error", KernelError, ids=lambda error: error.name)
def test_each_error_is_told_by_its_name(error: KernelError) -> None:
    if error == KernelError.ok:
        check(error, "this")
        return
    expected = HostOutOfMemory if error in LACKS else EngineFaulted
    with pytest.raises(expected, match=rf"^this can't be done: [\w' ]{{10,}} \({error.name}\)") as caught:
        check(error, "this can't be done", "do that")
    assert str(caught.value).endswith("; do that") == (error in LACKS)


def told_by_a_child(work: Callable[[], object]) -> str:
    """What `work` raises in a process of its own."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        told = "nothing"
        try:
            work()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        finally:
            os.write(writes, told.encode())
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, f"the process died; it told {told!r}"
    return told


def take_the_rest(size: int) -> list[bytearray]:
    """All that can still be had in pieces of `size`."""
    held = []
    with suppress(MemoryError):
        while True:
            held.append(bytearray(size))
    return held


def leave_only(n_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + n_bytes, most))


@pytest.fixture(scope="module")
def source() -> SyntheticSource:
    return SyntheticSource(VARIANTS[0].architecture, VARIANTS[0].types)


def test_without_threads_a_model_is_not_made(source: SyntheticSource) -> None:
    def work() -> None:
        leave_only(48 << 20)
        open_backend(source, n_threads=200)

    assert told_by_a_child(work).startswith("HostOutOfMemory: the native model can't be made: ")


def test_without_memory_a_step_ends_and_the_next_one_runs(source: SyntheticSource) -> None:
    ids = np.arange(4096) % 331

    def work() -> None:
        backend = open_backend(source, n_threads=2)
        narrow = step_of([(ids[:1], 4095, table_of(0, 4096), StepRow(WANT_NOTHING))])
        backend.run(narrow)
        wide = step_of([(ids, 0, table_of(0, 4096), StepRow(WANT_NOTHING))])
        before = resource.getrlimit(resource.RLIMIT_AS)
        leave_only(0)
        held = take_the_rest(256 << 10)
        try:
            backend.run(wide)
        finally:
            held.clear()
            resource.setrlimit(resource.RLIMIT_AS, before)
            backend.run(narrow)

    told = told_by_a_child(work)
    assert told.startswith(
        "HostOutOfMemory: the cpu backend refused a step: memory is short (no_memory); lower scheduler"
    )
