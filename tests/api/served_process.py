"""A server with a scripted engine in a process of its own, whose memory can be measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_SERVE = """
import asyncio
from imp_server.api.services import build_services
from imp_server.api.model_host import ModelHost
from imp_server.api.model_text_side import ModelTextSide
from imp_server.api.server import bind, run
from imp_server.config import Config
from imp_server.engine.client.scripted import ScriptedEngine, text_ids
from tests.toy import byte_model

async def main():
    config = Config.of({"server.port": 0, "responses.store_path": ":memory:"})
    model = ModelTextSide(byte_model())
    engine = ScriptedEngine(model.vocabulary, context_length=4096)
    engine.always(text_ids("x"))
    services = build_services(config, [ModelHost("m", engine, lambda: model, config)])
    await run(services, bind(config.server), lambda line: print(line, flush=True))

asyncio.run(main())
"""


@contextmanager
def served_process() -> Iterator[tuple[str, Callable[[], float]]]:
    """(base URL, MiB of the process's memory)."""
    command = [sys.executable, "-c", _SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the server didn't start"

            def rss() -> float:
                return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 2**20

            yield line.split()[-1], rss
        finally:
            process.kill()
