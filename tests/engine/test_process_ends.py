"""What is said of an engine process that ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from imp_server.config import Config
from imp_server.core import EXIT_DEVICE_LOST, UserFault
from imp_server.engine.client.process import ProcessEngine
from imp_server.engine.messages import ModelInfo


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("os._exit(7)", "ended with code 7 while"),
        ("os._exit(0)", "ended with code 0 while"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV while"),
        ("os.kill(os.getpid(), 9)", "SIGKILL (the system kills so where memory runs out) while"),
    ],
)
def test_an_engine_that_ends_while_it_loads(monkeypatch: pytest.MonkeyPatch, ends: str, said: str) -> None:
    real = subprocess.Popen

    def popen(command: list[str], **more: Any) -> Any:
        return real([sys.executable, "-S", "-c", f"import os; {ends}"], **more)

    monkeypatch.setattr(subprocess, "Popen", popen)

    async def body() -> None:
        engine = ProcessEngine("nowhere.gguf", "nobody", Config())
        with pytest.raises(UserFault) as caught:
            await engine.start()
        assert f"{said} it loaded the model" in str(caught.value)
        assert engine.n_crashes == 1

    asyncio.run(asyncio.wait_for(body(), 30))


@pytest.mark.parametrize(("n_faults", "n_starts"), [(2, 3), (9, 4)])
def test_one_that_loses_its_device_while_it_loads_is_started_again(
    monkeypatch: pytest.MonkeyPatch, n_faults: int, n_starts: int
) -> None:
    """The next one does without what was under way; but not for ever."""
    real, started = subprocess.Popen, []

    def popen(command: list[str], **more: Any) -> Any:
        started.append(command)
        code = EXIT_DEVICE_LOST if len(started) <= n_faults else 7
        return real([sys.executable, "-S", "-c", f"import os; os._exit({code})"], **more)

    monkeypatch.setattr(subprocess, "Popen", popen)

    async def body() -> None:
        engine = ProcessEngine("nowhere.gguf", "nobody", Config())
        with pytest.raises(UserFault, match=f"ended with code {7 if n_faults < 3 else 76} while it loaded"):
            await engine.start()
        assert len(started) == n_starts

    asyncio.run(asyncio.wait_for(body(), 30))


def test_one_that_was_loaded_before_and_ends_while_it_loads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no crash of a running engine, which would be restarted while whoever loads it waits for ever."""
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda command, **more: real([sys.executable, "-S", "-c", "import os; os._exit(7)"], **more),
    )

    async def body() -> None:
        engine = ProcessEngine("nowhere.gguf", "nobody", Config())
        engine._info = ModelInfo("m", "llama", "", 1, 1, 1, 1, 1, "F16")
        with pytest.raises(UserFault, match="while it loaded the model"):
            await engine.start()
        assert engine.state == "failed"

    asyncio.run(asyncio.wait_for(body(), 30))


def test_the_terminal_ends_no_engine_and_priorities_count_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a session of its own Linux may give it no more of the processor than all checks of grammars together."""
    real, told = subprocess.Popen, tmp_path / "told"

    def popen(command: list[str], **more: Any) -> Any:
        tell = f"import os; open({str(told)!r}, 'w').write(f'{{os.getsid(0)}} {{os.getpgrp() == os.getpid()}}')"
        return real([sys.executable, "-S", "-c", tell], **more)

    monkeypatch.setattr(subprocess, "Popen", popen)

    async def body() -> None:
        with pytest.raises(UserFault):
            await ProcessEngine("nowhere.gguf", "nobody", Config()).start()

    asyncio.run(asyncio.wait_for(body(), 30))
    assert told.read_text() == f"{os.getsid(0)} True"
