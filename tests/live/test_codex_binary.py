"""The real Codex against a live server: it runs the command that the model calls for, and prints the model's end.

`make codex` installs it (400 MB) and runs this; elsewhere the environment variable CODEX names the program.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from imp_server.core import GenerateRequest, unpack_ids
from imp_server.engine.scripted import Action

from tests.live.toy_server import TOOLS_CHATML, call_text, toy_server
from tests.toy import bpe_model

CODEX = os.environ.get("CODEX", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CODEX, reason="CODEX names no program; `make codex` fetches it"),
]
MODEL = bpe_model()


def answer(_request: GenerateRequest, _choice: int) -> tuple[Action, ...]:
    return (MODEL.tokenize("The marker is there.", control=False),)


@pytest.mark.timeout(120)
def test_codex_runs_a_command_and_ends(tmp_path: Path) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    (work / "marker-7391.txt").write_text("x")
    with toy_server(TOOLS_CHATML, make_model=bpe_model, check_replies=True) as server:
        server.engine.answer_with(answer)
        server.engine.play(MODEL.tokenize("I'll look." + call_text("exec_command", cmd="ls"), control=False))
        provider = f'{{name="imp",base_url="{server.url}/v1",wire_api="responses",env_key="IMP_KEY"}}'
        command = [
            CODEX, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            "-c", "model_provider=imp", "-c", f"model_providers.imp={provider}", "-m", "toy", "Is a marker here?",
        ]  # fmt: skip
        env = {**os.environ, "CODEX_HOME": str(home), "IMP_KEY": "k"}
        ran = subprocess.run(
            command, cwd=work, env=env, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert "The marker is there." in ran.stdout
        prompt = unpack_ids(server.engine.requests_seen[-1].ids)
        assert "marker-7391.txt" in MODEL.detokenize(prompt, skip_special=False)
