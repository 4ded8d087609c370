"""What the calls of kernels/cpu/engine answer (error.h), and what the server says of it."""

from __future__ import annotations

from enum import IntEnum

from imp_server.core import EngineFaulted, HostOutOfMemory


class KernelError(IntEnum):
    """By their names in error.h; a library that numbers them otherwise is refused (abi.py)."""

    ok = 0
    no_memory = 1
    no_threads = 2
    unknown_layout = 3
    unexpected = 4
    wrong_rows = 5
    wrong_positions = 6
    wrong_block_table = 7
    wrong_id = 8
    beyond_rope = 9
    wrong_slot = 10


_WORDS = {
    KernelError.no_memory: "memory is short",
    KernelError.no_threads: "the system gives no more threads",
    KernelError.unknown_layout: "this layout isn't packed natively",
    KernelError.unexpected: "a kernel failed for no reason that it knows",
    KernelError.wrong_rows: "the rows don't cover the ids",
    KernelError.wrong_positions: "a row's positions aren't consecutive",
    KernelError.wrong_block_table: "a block table doesn't cover its row",
    KernelError.wrong_id: "an id is outside the vocabulary",
    KernelError.beyond_rope: "a position is beyond the rope table",
    KernelError.wrong_slot: "a row has no slot",
}


def check(code: int, work: str, mend: str = "") -> None:
    """Raises HostOutOfMemory for what the machine lacks, EngineFaulted for any other error, both with its name.

    `work`: what couldn't be done. `mend`: what helps against a lack.
    """
    if code == KernelError.ok:
        return
    error = KernelError(code)
    told = f"{work}: {_WORDS[error]} ({error.name})"
    if error in (KernelError.no_memory, KernelError.no_threads):
        raise HostOutOfMemory(f"{told}; {mend}" if mend else told)
    raise EngineFaulted(told)
