"""What a client keeps beside eight hostile ones: the analysis, small. It shows a lost multiple, no lost percent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "analysis" / "hostile_grammars.py"


def test_a_client_beside_hostile_ones_is_served(smollm2_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(smollm2_path), "--rounds", "1", "--seconds", "2"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True).stdout
    kept = float(re.findall(r"tokens/s (\S+) of the baseline", told)[0])
    first, constrained = (float(ms) for ms in re.findall(r"(\d+) ms beside hostile ones", told))
    assert kept > 0.15 and first < 2000 and constrained < 5000, told
