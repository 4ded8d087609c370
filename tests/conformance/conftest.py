"""One clean run of all cases against our own server with the real model, shared by the workers of a test run."""

from __future__ import annotations

import fcntl
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from imp_server.conformance.capabilities import Capabilities, probe
from imp_server.conformance.case import load_cases
from imp_server.conformance.exchange import Target
from imp_server.conformance.run import Outcome, run_case

from tests.conformance.tape import Exchange, Recorder
from tests.dead_ends import assert_none_at
from tests.real_model import smollm2

KEY = "kit-key"


@dataclass
class CleanRun:
    capabilities: Capabilities
    outcomes: list[Outcome]
    tapes: dict[str, list[Exchange]]
    """Case id -> its exchanges in order."""


@contextmanager
def served() -> Iterator[Target]:
    """`imp serve` on a free port with a key, at debug level: then it checks its own replies."""
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--port", "0", "--model", str(smollm2())]
    command += ["--api-key", KEY, "--log-level", "debug"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("Server listening on ")), "")
        assert line, "the server didn't start"
        yield Target(line.split()[-1], KEY)
        assert_none_at(line.split()[-1], KEY)
    finally:
        process.terminate()
        process.wait(20)


def record() -> CleanRun:
    with served() as target:
        run = CleanRun(probe(target), [], {})
        for case in load_cases():
            recorder = Recorder(target)
            run.outcomes.append(run_case(recorder, case, run.capabilities))
            run.tapes[case.id] = recorder.tape
        return run


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> CleanRun:
    base = tmp_path_factory.getbasetemp()
    folder = base if worker_id == "master" else base.parent
    kept: Path = folder / "conformance.pickle"
    with (folder / "conformance.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(record()))
        run: CleanRun = pickle.loads(kept.read_bytes())
    return run
