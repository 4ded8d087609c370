"""`imp chat` as a process with the default model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def chat(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "imp_server.cli.main", "chat", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=110, check=False)


def test_one_question_on_standard_input(smollm2_path: Path) -> None:
    question = "What is the capital of France? Answer in one word."
    done = chat(str(smollm2_path), "--max-tokens", "12", "--temperature", "0", stdin=question)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "first token after" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--prompt", "hi", "--model", "none"), 1, "a chat needs a model"),
        (("--prompt", "hi", "./gone.gguf"), 4, "no model file"),
        ((), 1, "nothing to answer"),
        (("--temperature", "-1", "--prompt", "x"), 1, "--temperature"),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: int, part: str, smollm2_path: Path) -> None:
    done = chat(*arguments)
    assert done.returncode == code and part in done.stderr and "Traceback" not in done.stderr


def test_a_truncated_file(tmp_path: Path, smollm2_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2_path.open("rb") as whole:
        cut.write_bytes(whole.read(4_000_000))
    done = chat(str(cut), "--prompt", "hi")
    assert done.returncode == 5 and "cut.gguf" in done.stderr and len(done.stderr.splitlines()) == 1
