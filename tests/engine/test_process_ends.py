"""What is said of an engine process that ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from imp_server.config import Config
from imp_server.core import UserFault
from imp_server.engine import process
from imp_server.engine.process import ProcessEngine


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

    monkeypatch.setattr(process.subprocess, "Popen", popen)

    async def body() -> None:
        engine = ProcessEngine("nowhere.gguf", "nobody", Config())
        with pytest.raises(UserFault) as caught:
            await engine.start()
        assert f"{said} it loaded the model" in str(caught.value)
        assert engine.n_crashes == 1

    asyncio.run(asyncio.wait_for(body(), 30))
