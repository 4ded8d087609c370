"""A signal in the first moment of a command, while most of it isn't imported yet."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from imp_server.cli._exit_codes import EXIT_CANCELLED

STRUCK = """
import os, sys
from imp_server.cli import _entry

class Striking:
    def find_spec(self, name, path=None, target=None):
        if name == "imp_server.cli.main":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Striking())
sys.argv = ["imp", "serve"]
_entry.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_imports_ends_the_command_as_later(number: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", STRUCK.format(number=int(number))], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_CANCELLED, "", "imp: cancelled\n")
