"""What a cubin says of its kernels: registers, shared memory, threads, local memory, and how many fit a processor.

A cubin is an ELF file. `.nv.info` holds per kernel, by the number of its symbol, EIATTR_REGCOUNT (0x2F) and
EIATTR_FRAME_SIZE (0x11), bytes of local memory of a thread; `.nv.info.NAME` EIATTR_MAX_THREADS (0x05);
`.nv.shared.NAME` is as long as the kernel's static shared memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_REGISTERS, _FRAME, _MAX_THREADS = 0x2F, 0x11, 0x05
_SIZED = 4
"""The form of an attribute whose value has a length of its own; those of all others are 2 bytes."""


@dataclass(frozen=True, slots=True)
class Processor:
    """Limits of one multiprocessor (CUDA programming guide, technical specifications by compute capability)."""

    most_warps: int
    most_blocks: int
    shared_bytes: int
    """All of it; each block takes 1 KiB beside its own."""
    block_shared_bytes: int
    """Most that a block may have."""

    registers = 65536
    registers_step = 256
    """Registers are given to warps in pieces of so many."""


_KIB = 1024
PROCESSORS = {
    80: Processor(64, 32, 164 * _KIB, 163 * _KIB),
    86: Processor(48, 16, 100 * _KIB, 99 * _KIB),
    89: Processor(48, 24, 100 * _KIB, 99 * _KIB),
    90: Processor(64, 32, 228 * _KIB, 227 * _KIB),
    100: Processor(64, 32, 228 * _KIB, 227 * _KIB),
    120: Processor(48, 24, 100 * _KIB, 99 * _KIB),
    121: Processor(48, 24, 100 * _KIB, 99 * _KIB),
}
"""By architecture."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    name: str
    registers: int
    local_bytes: int
    """Of a thread: spilled registers, or arrays that are no registers."""
    shared_bytes: int
    threads: int
    """Most of a block."""

    def warps_at_once(self, arch: int, dynamic_shared: int = 0) -> int:
        """Warps that a processor holds of it; 0 = it can't run."""
        limits = PROCESSORS[arch]
        warps = -(-self.threads // 32)
        shared = self.shared_bytes + dynamic_shared
        if shared > limits.block_shared_bytes:
            return 0
        of_a_warp = -(-self.registers * 32 // limits.registers_step) * limits.registers_step
        by_registers = limits.registers // of_a_warp // warps
        own = shared if arch >= 90 else shared + _KIB  # newer cubins count the driver's share already
        by_shared = limits.shared_bytes // max(own, 1)
        return warps * min(by_registers, by_shared, limits.most_blocks, limits.most_warps // warps)


def kernels_of(cubin: bytes) -> list[KernelFacts]:
    """By name. Raises ValueError if that is no cubin."""
    sections = _sections(cubin)
    symbols = _symbols(sections)
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for code, value in _attributes(sections.get(".nv.info", b"")):
        if code in (_REGISTERS, _FRAME):
            symbol, number = struct.unpack_from("<II", value)
            (registers if code == _REGISTERS else frames)[symbols[symbol]] = number
    found = []
    for section in sorted(sections):
        if not section.startswith(".nv.info."):
            continue
        name = section.removeprefix(".nv.info.")
        threads = dict(_attributes(sections[section])).get(_MAX_THREADS, struct.pack("<I", 1024))
        shared = sections.get(f".nv.shared.{name}", b"")
        first = struct.unpack_from("<I", threads)[0]
        found.append(KernelFacts(name, registers[name], frames.get(name, 0), len(shared), first))
    return found


def _sections(elf: bytes) -> dict[str, bytes]:
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("that isn't a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = elf[headers[names_at][4] :]
    found = {}
    for name, kind, _, _, offset, length in headers:
        text = names[name : names.index(b"\0", name)].decode()
        has_bytes = kind != 8  # SHT_NOBITS: memory that the file doesn't hold
        found[text] = elf[offset : offset + length] if has_bytes else bytes(length)
    return found


def _symbols(sections: dict[str, bytes]) -> list[str]:
    table, names = sections[".symtab"], sections[".strtab"]
    starts = [struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), 24)]
    return [names[at : names.index(b"\0", at)].decode() for at in starts]


def _attributes(info: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at + 4 <= len(info):
        form, code, length = struct.unpack_from("<BBH", info, at)
        value = info[at + 4 : at + 4 + length] if form == _SIZED else info[at + 2 : at + 4]
        found.append((code, value))
        at += 4 + (length if form == _SIZED else 0)
    return found
