"""A build without a C++ compiler: one message that says what to install, and a way to go on without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import build_native


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment with no compiler on the path."""
    names = {name: value for name, value in os.environ.items() if name not in ("CXX", "IMP_NO_NATIVE")}
    return {**names, "PATH": str(tmp_path)}


def test_by_hand(bare: dict[str, str], repo_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(repo_root / "build_native.py")], env=bare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stdout == build_native.NO_COMPILER + "\n" and done.stderr == ""
    assert "g++" in done.stdout and "CXX" in done.stdout


def test_the_hook_stops_an_installation_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    class App:
        def abort(self, message: str) -> None:
            raise SystemExit(message)

    hook = object.__new__(build_native.NativeBuildHook)
    monkeypatch.setattr(build_native.NativeBuildHook, "app", App(), raising=False)
    monkeypatch.setattr(build_native.NativeBuildHook, "target_name", "wheel", raising=False)
    monkeypatch.setattr(build_native, "compile_all", lambda _: [build_native.NO_COMPILER])
    monkeypatch.delenv("IMP_NO_NATIVE", raising=False)
    with pytest.raises(SystemExit, match=r"There is no C\+\+ compiler(.|\n)*IMP_NO_NATIVE=1"):
        hook.initialize("editable", {})
    monkeypatch.setenv("IMP_NO_NATIVE", "1")
    hook.initialize("editable", {"force_include": {}})  # compiles nothing, which the kernels' own target does meanwhile
