"""What tests leave behind lies in a folder of the run, whatever process wrote it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from imp_server.backends.cpu.pack_files import pack_folder
from imp_server.config import imp_home
from imp_server.weights.catalogue import models_folder


def test_packs_stay_with_the_run_and_models_are_the_users() -> None:
    assert imp_home().is_relative_to(tempfile.gettempdir()) and pack_folder("").is_relative_to(imp_home())
    assert models_folder().is_symlink() and Path.home() not in imp_home().parents
    told = "from imp_server.config import imp_home; print(imp_home())"
    child = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert Path(child.stdout.strip()) == imp_home() == Path(os.environ["IMP_HOME"])
