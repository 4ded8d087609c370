"""Machine code as nvdisasm shows it: what stands in the loops of a kernel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which

_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*?);")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_KERNEL = re.compile(r"^\.text\.(\w+):")
LOCAL = ("LDL", "STL")
"""Accesses to local memory: spilled registers, or arrays that are none."""


@dataclass(frozen=True, slots=True)
class Code:
    """Opcodes with their modifiers, as often as they stand there: of a whole kernel, and of each loop, inner ones
    included."""

    whole: Counter[str]
    loops: tuple[Counter[str], ...]

    def hottest(self, *opcodes: str) -> Counter[str]:
        """The loop that has most instructions of these; of loops around each other the innermost."""

        def rank(loop: Counter[str]) -> tuple[int, int]:
            return sum(count(loop, opcode) for opcode in opcodes), -loop.total()

        return max(self.loops, key=rank, default=Counter())


def count(code: Counter[str], opcode: str, *modifiers: str) -> int:
    """Instructions `opcode` (as LDG) that have all modifiers."""
    return sum(n for name, n in code.items() if _is(name.split("."), opcode, modifiers))


def _is(parts: list[str], opcode: str, modifiers: tuple[str, ...]) -> bool:
    return parts[0] == opcode and set(modifiers) <= set(parts[1:])


def disassembler() -> str | None:
    """nvdisasm of a CUDA installation, or of NVIDIA's wheel."""
    spec = find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    found = [path for root in roots for path in root.glob("*/bin/nvdisasm")]
    return str(found[0]) if found else which("nvdisasm")


def disassembled(cubin: bytes, program: str) -> dict[str, Code]:
    """Kernel -> its code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=True)
    return parsed(told.stdout)


def parsed(text: str) -> dict[str, Code]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if kernel := _KERNEL.match(line):
            lines = found.setdefault(kernel[1], [])
        lines.append(line)
    return {name: _code(own) for name, own in found.items()}


def _code(lines: list[str]) -> Code:
    names: list[str] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    for line in lines:
        if label := _LABEL.match(line):
            labels[label[1]] = len(names)
        elif instruction := _INSTRUCTION.search(line):
            names.append(instruction[1])
            target = _TARGET.search(instruction[2])
            if instruction[1].startswith("BRA") and target:
                jumps.append((len(names) - 1, target[1]))
    spans = [(labels[to], at + 1) for at, to in jumps if labels.get(to, at + 1) <= at]
    return Code(Counter(names), tuple(Counter(names[a:b]) for a, b in sorted(set(spans))))
