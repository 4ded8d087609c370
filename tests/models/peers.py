"""llama.cpp's greedy ids of each file in tests/models/files against ours: `make peers`.

    python -m tests.models.peers PEER [CASE ...]

PEER is a llama-server, or the Python of an environment with llama-cpp-python; either is built once outside CI. Ids are
compared as long as the best is ahead of the next by more than what the two may differ.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.models.opening import open_model

from tests.backends.driver import Driver
from tests.models.family_cases import CASES
from tests.models.oracle import IDS, SMALL
from tests.models.oracle_files import file_of
from tests.models.peer_server import greedy

N_IDS = 6
MARGIN = 1e-2
"""Of the largest logit: its cache is f16."""
EOS = SMALL["eos_token_id"]
"""Where llama.cpp ends."""
DIFFER = {
    "phi3": "it leaves the window out",
    "gpt-oss": "it rounds yarn's blend to whole pairs",
    "olmo3": "it makes its own attention factor of the scaling",
    "exaone4": "it knows windows in the model of 64 layers only",
    "deepseek-v2": "it adds a group's two best experts",
    "phi-moe": "its router is a softmax over all",
    "deepseek-v2 lite": "it tells the small model by its 27 layers",
    "gemma3n": "it takes the published models' sizes and counts, whatever the file says",
}
"""Where docs/models.md says that another reading is right."""


def sure_ids(path: Path) -> list[int]:
    """Our greedy ids, up to the first that is hardly ahead."""
    driver = Driver(ReferenceBackend(open_model(path)), n_blocks=8)
    lane = driver.sequence(len(IDS) + N_IDS)
    ids = list(IDS)
    for _ in range(N_IDS):
        (result,) = driver.run([(lane, ids[lane.n_done :])])
        assert result.logits is not None
        last = result.logits[-1]
        second, best = np.sort(last)[-2:]
        if best - second <= MARGIN * np.abs(last).max():
            break
        ids.append(int(last.argmax()))
    return ids[len(IDS) :]


def theirs_of(peer: str, paths: dict[str, Path]) -> dict[str, Any]:
    """Of each case its ids, or what its peer says instead."""
    if Path(peer).name.startswith("llama-server"):
        return {name: greedy(peer, path, IDS, N_IDS) for name, path in paths.items()}
    script = str(Path(__file__).with_name("peer_llama_cpp.py"))
    command = [peer, script, str(N_IDS), ",".join(map(str, IDS)), *map(str, paths.values())]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return {name: said[str(path)] for name, path in paths.items()}


def main(peer: str, names: list[str]) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as base:
        paths = {name: Path(base) / f"{number}.gguf" for number, name in enumerate(names)}
        for name, path in paths.items():
            path.write_bytes(lzma.decompress(file_of(name).read_bytes()))
        answers = theirs_of(peer, paths)
        for name, path in paths.items():
            ours, theirs = sure_ids(path), answers[name]
            same = isinstance(theirs, list) and theirs[: len(ours)] == ours[: len(theirs)]
            same = same and (len(theirs) >= len(ours) or theirs[-1] == EOS)
            why = "" if same else DIFFER.get(name, "")
            wrong += not same and not why
            print(f"{name}: {'same' if same else why or 'DIFFERS'}; ours {ours}, llama.cpp's {theirs}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] or [name for name, case in CASES.items() if case.has_gguf]))
