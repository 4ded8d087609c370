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
MARGINS = {True: 2e-3, False: 1e-2}
"""Of the largest logit, for a llama-server and for the Python binding, whose cache is f16."""
EOS = SMALL["eos_token_id"]
"""Where llama.cpp ends."""
DIFFER = {
    "phi3": "it leaves the window out",
    "gpt-oss": "it rounds yarn's blend to whole pairs",
    "olmo3": "it makes its own attention factor of the scaling",
    "exaone4": "it knows windows in the model of 64 layers only",
    "deepseek-v2": "it adds a group's two best experts",
    "deepseek-v3": "it takes yarn's usual betas, and the model's eps for what is compressed",
    "kimi-k2": "it takes yarn's usual betas, and the model's eps for what is compressed",
    "glm-4.7-flash": "it takes the model's eps for what is compressed, and knows the router by the vocabulary's size",
    "phi-moe": "its router is a softmax over all",
    "deepseek-v2 lite": "it tells the small model by its 27 layers",
    "gemma3n": "it takes the published models' sizes and counts, whatever the file says",
}
"""Where docs/models.md says that another reading is right."""


def sure_ids(path: Path, margin: float) -> tuple[list[int], list[int]]:
    """A prompt, and our greedy ids behind it up to the first that is hardly ahead; the longest prompt that has any."""
    for n in range(len(IDS), len(IDS) // 2, -1):
        if found := _greedy(path, IDS[:n], margin):
            break
    return IDS[:n], found


def _greedy(path: Path, prompt: list[int], margin: float) -> list[int]:
    driver = Driver(ReferenceBackend(open_model(path)), n_blocks=8)
    lane = driver.sequence(len(prompt) + N_IDS)
    ids = list(prompt)
    for _ in range(N_IDS):
        (result,) = driver.run([(lane, ids[lane.n_done :])])
        assert result.logits is not None
        last = result.logits[-1]
        second, best = np.sort(last)[-2:]
        if best - second <= margin * np.abs(last).max():
            break
        ids.append(int(last.argmax()))
    return ids[len(prompt) :]


def is_server(peer: str) -> bool:
    return Path(peer).name.startswith("llama-server")


def theirs_of(peer: str, prompts: dict[Path, list[int]]) -> dict[Path, Any]:
    """Of each file its ids, or what its peer says instead."""
    if is_server(peer):
        return {path: greedy(peer, path, ids, N_IDS) for path, ids in prompts.items()}
    command = [peer, str(Path(__file__).with_name("peer_llama_cpp.py")), str(N_IDS)]
    asked = json.dumps({str(path): ids for path, ids in prompts.items()})
    said = subprocess.run(command, input=asked, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    return {Path(path): ids for path, ids in json.loads(said).items()}


def main(peer: str, names: list[str]) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as base:
        paths = {name: Path(base) / f"{number}.gguf" for number, name in enumerate(names)}
        for name, path in paths.items():
            path.write_bytes(lzma.decompress(file_of(name).read_bytes()))
        own = {path: sure_ids(path, MARGINS[is_server(peer)]) for path in paths.values()}
        answers = theirs_of(peer, {path: prompt for path, (prompt, _) in own.items()})
        for name, path in paths.items():
            ours, theirs = own[path][1], answers[path]
            same = isinstance(theirs, list) and theirs[: len(ours)] == ours[: len(theirs)]
            same = same and (len(theirs) >= len(ours) or theirs[-1] == EOS)
            why = "" if same else DIFFER.get(name, "")
            wrong += not same and not why
            print(f"{name}: {'same' if same else why or 'DIFFERS'}; ours {ours}, llama.cpp's {theirs}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] or [name for name, case in CASES.items() if case.has_gguf]))
