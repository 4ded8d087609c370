"""Steps: flat arrays to the native forward and back. Owner of the native model handle.

The host's share of a step is on every token's way, so what steps have in common is kept (buffers.py), not made anew.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np
import numpy.typing as npt

from imp_server.backends.base import Float32s, Int32s, Step, StepResult
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.adapters import PackedAdapters
from imp_server.backends.cpu.buffers import StepRoom
from imp_server.backends.cpu.errors import check
from imp_server.backends.cpu.lowering import LoweredModel
from imp_server.backends.cpu.outputs import Outputs
from imp_server.backends.cpu.thread_choice import ThreadChoice
from imp_server.models import rotation

_FIRST_POSITIONS = 2048
_NARROW = 8
"""Tokens of a step that may be over before the system gives the mask thread a core that this step holds. A wider one
takes long enough."""
_NARROWER = "lower scheduler.prefill_chunk"


class StepRunner:
    """Runs steps of one model on one pool of threads, in the order of their launch."""

    def __init__(
        self,
        library: ctypes.CDLL,
        lowered: LoweredModel,
        pools: list[npt.NDArray[np.uint8]],
        adapters: PackedAdapters,
        n_threads: int,
        max_positions: int,
        spin_us: int,
        *,
        n_beside_masks: int,
    ) -> None:
        """`n_beside_masks`: threads that leave a core to the mask thread."""
        self._n_beside_masks = n_beside_masks
        self._library = library
        self._lowered, self._adapters = lowered, adapters
        self._most_positions = max(max_positions, lowered.architecture.context_length)
        self._max_positions = max_positions
        self.threads = ThreadChoice(n_threads)
        self._handle = ctypes.c_void_p()
        code = library.imp_cpu_open(ctypes.byref(lowered.plan), n_threads, spin_us, ctypes.byref(self._handle))
        check(code, "the native model can't be made", "lower cpu.threads")
        plans = (abi.PoolPlan * len(pools))(*(abi.PoolPlan(p.ctypes.data, p.shape[1], len(p)) for p in pools))
        library.imp_cpu_set_pools(self._handle, plans)
        self._n_groups = len(pools)
        self._rooms: list[StepRoom] = []
        """Of steps that were collected."""
        self._under_way: dict[StepRoom, PendingStep] = {}
        """Held until then, and with them all that they point to."""
        self._ropes: list[list[Float32s]] = []
        """All that there were: a step under way may read those from before they grew."""
        self._n_rope_positions = 0
        self._grow_ropes(min(_FIRST_POSITIONS, max_positions))
        self.native_s = 0.0
        """Seconds that the step collected last took."""

    def close(self) -> None:
        """Runs what was launched to its end."""
        self._library.imp_cpu_close(self._handle)
        self._handle = ctypes.c_void_p()

    def launch(self, step: Step, n_threads: int = 0) -> PendingStep:
        n_tokens, depth = len(step.ids), int(step.positions.sum()) // len(step.ids)
        room = self._rooms.pop() if self._rooms else StepRoom(self._n_groups, self._lowered.architecture.vocab_size)
        top = int(step.positions.max())
        if self._n_rope_positions <= top < self._most_positions:
            self._grow_ropes(top + 1)
        self._plan_inputs(step, room)
        outputs = Outputs(step, room, self._lowered.architecture.width)
        chosen = n_threads or self.threads.threads_for(n_tokens, depth)
        if n_tokens <= _NARROW and _waits_for_masks(step):
            chosen = min(chosen, self._n_beside_masks)
        room.plan.n_threads = chosen
        check(
            self._library.imp_cpu_launch(self._handle, ctypes.byref(room.plan)), "a step can't be launched", _NARROWER
        )
        pending = self._under_way[room] = PendingStep(self, room, outputs, (n_tokens, chosen, depth))
        return pending

    def finish(self, room: StepRoom, about: tuple[int, int, int]) -> None:
        """Wait for the step. Raises EngineFaulted for one that contradicts itself, HostOutOfMemory."""
        code = self._library.imp_cpu_collect(self._handle, ctypes.byref(room.plan))
        check(code, "the cpu backend refused a step", _NARROWER)
        self.native_s = 1e-9 * room.plan.elapsed_ns
        n_tokens, chosen, depth = about
        self.threads.observe(n_tokens, chosen, self.native_s, depth)

    def give_back(self, room: StepRoom) -> None:
        """Nobody reads it any more."""
        del self._under_way[room]
        self._rooms.append(room)

    def copy_blocks(self, group: int, pairs: Int32s) -> None:
        """Behind the steps launched so far."""
        own = np.ascontiguousarray(pairs, dtype=np.int32)
        code = self._library.imp_cpu_copy_blocks(self._handle, group, own.ctypes.data, len(own))
        check(code, "blocks can't be copied")

    def finish_all(self) -> None:
        """Wait for all that was asked."""
        self._library.imp_cpu_finish(self._handle)

    def _plan_inputs(self, step: Step, room: StepRoom) -> None:
        plan, buffers = room.plan, room.buffers
        plan.ids = buffers.ids.hold(step.ids)
        plan.positions = buffers.positions.hold(step.positions)
        plan.row_starts = buffers.row_starts.hold(step.row_starts)
        plan.slots = buffers.slots.hold([row.slot for row in step.rows])
        for group, changes in enumerate(step.table_changes):
            own = room.changes[group]
            own.n = len(changes.slots)
            if own.n:
                of_group = buffers.changes[group]
                own.slots, own.columns, own.blocks = (
                    buffer.hold(values) for buffer, values in zip(of_group, changes, strict=True)
                )
        plan.n_embedded = 0
        if step.embeddings is not None:
            room.embeddings = np.ascontiguousarray(step.embeddings.vectors, dtype=np.float32)
            plan.embeddings, plan.n_embedded = room.embeddings.ctypes.data, len(room.embeddings)
            plan.embedded_tokens = buffers.embedded_tokens.hold(step.embeddings.tokens)
        room.adapters = self._adapters.plan(plan, step.rows)
        plan.n_tokens, plan.n_rows = len(step.ids), len(step.rows)
        plan.rope_tables = buffers.rope_tables.hold([table.ctypes.data for table in self._ropes[-1]])
        plan.rope_positions = buffers.rope_positions.hold([self._n_rope_positions] * len(self._ropes[-1]))

    @property
    def panels_evaluated(self) -> int:
        """Panels of the head multiplied by the last search through its plane; 0: it was left to the full product."""
        return int(self._library.imp_cpu_panels_evaluated(self._handle))

    @property
    def masked_panels(self) -> int:
        """Panels of the head that the last step multiplied for rows whose masks allow few."""
        return int(self._library.imp_cpu_masked_panels(self._handle))

    def read_bandwidth(self, buffer: npt.NDArray[np.uint8]) -> float:
        start = time.perf_counter()
        self._library.imp_cpu_read_all(buffer.ctypes.data, len(buffer) // 8)
        return len(buffer) / (time.perf_counter() - start)

    def _grow_ropes(self, n_positions: int) -> None:
        """Tables grow in powers of two: most contexts stay far below what a model could take."""
        n = min(1 << max(0, n_positions - 1).bit_length(), max(self._max_positions, n_positions))
        self._ropes.append([np.ascontiguousarray(rotation.table(rope, n)) for rope in self._lowered.ropes])
        self._n_rope_positions = n


def _waits_for_masks(step: Step) -> bool:
    """The mask thread is at work for it now. For rows that are ahead it begins when the step in front is done."""
    flags = step.mask_flags
    if flags is None:
        return False
    asked = (row for row in step.rows if row.mask_row >= 0 and not row.is_ahead)
    return not all(flags[row.mask_row : row.mask_row + 1 + row.n_drafts].all() for row in asked)


class PendingStep:
    """Implements backends/base.py `Pending`."""

    __slots__ = ("_about", "_outputs", "_room", "_runner")

    def __init__(self, runner: StepRunner, room: StepRoom, outputs: Outputs, about: tuple[int, int, int]) -> None:
        """`about`: tokens, threads and depth of the step."""
        self._runner, self._room, self._outputs, self._about = runner, room, outputs, about

    def collect(self) -> StepResult:
        try:
            self._runner.finish(self._room, self._about)
            return self._outputs.results()
        finally:
            self._runner.give_back(self._room)
