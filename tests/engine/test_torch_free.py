"""The engine process of the cpu backend never imports torch: it costs a second and 200 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from imp_server.backends import choose

from tests.models.tiny_gguf import write_tiny_llama

SCRIPT = """
import sys
from imp_server.config import Config
from imp_server.engine.build import build_engine
from imp_server.engine import child
config = Config.of({"engine.backend": "cpu"}).for_engine()
built = build_engine(sys.argv[1], "tiny", config, lambda m: None, lambda m: None)
assert built.info.backend == "cpu"
print("torch" in sys.modules)
"""


def test_the_cpu_engine(tmp_path: Path) -> None:
    if choose("auto") == "reference":
        pytest.skip("the native library isn't built: run `python build_native.py`")
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(model)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_the_client_side() -> None:
    code = (
        "import sys, imp_server.engine.client.process, imp_server.engine.client.scripted; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
