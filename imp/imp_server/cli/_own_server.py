"""A server of one's own for the time of a command: on a free port, ended behind it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from imp_server.cli._chat_server import listed_models
from imp_server.core import (
    CapacityExceeded,
    HostOutOfMemory,
    InvalidModel,
    ModelFileMissing,
    UnsupportedModel,
    UserFault,
)

_LISTENING = "Server listening on "
_PLAIN = {"--host": "127.0.0.1", "--port": "0", "--log-format": "pretty"} | dict.fromkeys(
    ("--api-key", "--api-key-file", "--ssl-certfile", "--ssl-keyfile", "--api-prefix", "--models-preset"), ""
)
"""Stronger than a file or variables that say how others reach the user's server."""
_LONGEST_END_S = 90
"""A drain takes a minute where requests are under way, as after an interrupt."""

_FAULTS = {
    fault.exit_code: fault
    for fault in (HostOutOfMemory, ModelFileMissing, InvalidModel, UnsupportedModel, CapacityExceeded)
}


@contextlib.contextmanager
def served(model: str) -> Iterator[str]:
    """The URL of a server of `model`, once that is loaded. What it says of itself goes to stderr.

    Raises the UserFault that has the exit code with which it ended.
    """
    plainly = [part for option in _PLAIN.items() for part in option]
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--model", model, *plainly]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith(_LISTENING)), "")
        if not line:
            fault = _FAULTS.get(process.wait(), UserFault)
            raise fault(f"{model} can't be served; the lines above say why")
        url = line.removeprefix(_LISTENING).strip()
        while not any(entry.get("loaded", True) for entry in listed_models(url, "")):
            if (code := process.poll()) is not None:
                raise _FAULTS.get(code, UserFault)(f"the server of {model} ended; the lines above say why")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_LONGEST_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
