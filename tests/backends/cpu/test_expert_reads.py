"""Of a mixture's experts those are read that a step's rows chose, each once for all of its rows."""

from __future__ import annotations

import ctypes
import mmap
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

import numpy as np
import pytest
from imp_server.backends.base import WANT_PROMPT_LOGITS, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.models.feed_forwards import Experts

from tests.backends.cpu.running import logits_in_chunks, open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import SyntheticSource, architecture
from tests.backends.driver import Driver

TYPES = {"": "Q4_1", "embedding": "Q8_0", "router": "F32"}
NAMES = ("layers.0.experts_gate", "layers.0.experts_up", "layers.0.experts_down")
COUNT, TOP_K = 16, 2
IDS = [3]


def spans(backend: CpuBackend, expert: int) -> list[tuple[int, int]]:
    """Where an expert's packed weights lie: address and bytes."""
    found = []
    for name in NAMES:
        shape = backend.weights.shapes[name]
        size = shape.n_panels // COUNT * shape.panel_bytes
        found.append((backend.weights.address(name) + expert * size, size))
    return found


def is_chosen(backend: CpuBackend, expert: int, plain: np.ndarray) -> bool:
    """Other weights of it are seen in the logits."""
    kept = [(at, ctypes.string_at(at, size)) for at, size in spans(backend, expert)]
    for at, data in kept:
        ctypes.memmove(at, bytes(byte ^ 0x15 for byte in data), len(data))
    changed = logits_in_chunks(backend, IDS, 1)
    for at, data in kept:
        ctypes.memmove(at, data, len(data))
    return not np.array_equal(changed, plain)


def lock(backend: CpuBackend, experts: Iterable[int]) -> None:
    """Reading these ends the process."""
    for expert in experts:
        for at, size in spans(backend, expert):
            first, end = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE, (at + size) // mmap.PAGESIZE * mmap.PAGESIZE
            assert end > first
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first), ctypes.c_size_t(end - first), 0) == 0


def main(locked: str) -> None:
    source = SyntheticSource(architecture(width=256, feed_forward=Experts(COUNT, TOP_K, 256)), TYPES)
    backend = open_backend(source, huge_pages=False)
    plain = logits_in_chunks(backend, IDS, 1)
    chosen = {expert for expert in range(COUNT) if is_chosen(backend, expert, plain)}
    assert len(chosen) == TOP_K
    lock(backend, chosen if locked == "chosen" else set(range(COUNT)) - chosen)
    np.testing.assert_array_equal(logits_in_chunks(backend, IDS, 1), plain)


def test_of_equal_router_numbers_the_lowest_ids_count() -> None:
    """On the reference, too: its logits are those of the same experts."""
    source = SyntheticSource(architecture(width=256, n_layers=1, feed_forward=Experts(COUNT, TOP_K, 256)), TYPES)
    source.raw("layers.0.router").data[:] = 0
    backend = open_backend(source, huge_pages=False)
    plain = logits_in_chunks(backend, IDS, 1)
    assert [expert for expert in range(COUNT) if is_chosen(backend, expert, plain)] == [0, 1]
    reference = Driver(ReferenceBackend(source)).logits(IDS, 1)
    assert np.abs(plain - reference).max() < 0.05 * np.abs(reference).max()
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize(("locked", "ended"), [("others", 0), ("chosen", -signal.SIGSEGV)])
def test_experts_that_nobody_chose_are_not_read(locked: str, ended: int) -> None:
    script = f"from tests.backends.cpu.test_expert_reads import main; main({locked!r})"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == ended, done.stderr


@pytest.mark.slow
def test_rows_of_one_expert_share_its_weights() -> None:
    """Eight rows that choose alike cost much less than eight times one: weights are read and taken apart once."""
    made = architecture(width=1024, n_layers=1, vocab=64, feed_forward=Experts(8, 4, 2048))
    backend = open_backend(SyntheticSource(made, TYPES))
    one = step_of([(IDS, 0, table_of(0, 16), StepRow(WANT_PROMPT_LOGITS))])
    many = step_of([(IDS, 0, table_of(row, 16), StepRow(WANT_PROMPT_LOGITS)) for row in range(8)])
    backend.run(one)
    backend.run(many)
    took = {}
    for name, step, times in (("one", one, 80), ("many", many, 10)):
        began = time.process_time()
        for _ in range(times):
            rows = backend.run(step).rows
        took[name] = time.process_time() - began
    found = [row.logits for row in rows if row.logits is not None]
    assert len(found) == 8 and all(np.array_equal(logits, found[0]) for logits in found)
    print(f"80 rows: {took['one']:.3f} s one by one, {took['many']:.3f} s by eight")
    assert took["many"] < 0.75 * took["one"]
    backend.close()
