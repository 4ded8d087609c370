"""What a client keeps beside eight hostile ones: the analysis, small.

It counts the client's tokens/s beside its own baseline, and who had how much of the processor: checks at ordinary
priority and the mask thread together well less than the step loop, and the former what is paid for. On cores that other
programs use, too, which the baseline tells, only the last one says something.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SCRIPT = Path(__file__).resolve().parents[2] / "analysis" / "hostile_grammars.py"
SECONDS, TRIES = 3, 3
KEPT = 0.72
"""0.62 before quick slices were paid for; 0.8 is wanted, over more rounds."""
HINDERS = 0.65
"""Times the CPU time of the step loop: 1.2 before."""
MOST_CHECKS = 0.08 + 0.3 / SECONDS + 0.03
"""Of a core, at ordinary priority: 0.3 before."""
QUIET = 0.12
"""Of the time the loop waits for a core in the baseline, where no other program wants it."""


class Told(NamedTuple):
    """Parts of a core: of the step loop, the mask thread, and checks at ordinary priority; times in ms."""

    kept: float
    waited: float
    """By the loop, for a core, in the baseline."""
    loop: float
    masks: float
    checks: float
    firsts: list[float]

    @property
    def is_served(self) -> bool:
        return self.kept >= KEPT and self.masks + self.checks < HINDERS * self.loop

    @property
    def says_nothing(self) -> bool:
        return self.waited > QUIET


def measured(model: Path) -> Told:
    command = [sys.executable, str(SCRIPT), str(model), "--rounds", "1", "--seconds", str(SECONDS), "--ahead"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True).stdout
    kept = float(re.findall(r"tokens/s (\S+) of the baseline", told)[0])
    hurt, fair = (line for line in told.splitlines() if "waited for by the step loop" in line)
    waited = part(fair, "waited for by the step loop")
    loop, masks, checks = (part(hurt, name) for name in (", step loop", "mask thread", "checks"))
    firsts = [float(ms) for ms in re.findall(r"(\d+) ms beside hostile ones", told)]
    return Told(kept, waited, loop, masks, checks, firsts)


def part(line: str, name: str) -> float:
    return float(re.findall(rf"{name} (\d\.\d\d)", line)[0])


def test_a_client_beside_hostile_ones_is_served(smollm2_path: Path) -> None:
    tries: list[Told] = []
    while len(tries) < TRIES and not (tries and tries[-1].is_served):
        tries.append(told := measured(smollm2_path))
        assert told.checks <= MOST_CHECKS, told
        first, constrained, new = told.firsts
        assert first < 1000 and constrained < 2000 and new < 2000, told
    assert any(told.is_served or told.says_nothing for told in tries), tries
