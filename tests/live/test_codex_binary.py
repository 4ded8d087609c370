"""The real Codex against a live server of 256k context: it starts a command, answers the command's question by a
second tool, and prints the model's end.

`make codex` installs it (400 MB) and runs this; elsewhere the environment variable CODEX names the program.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from imp_server.core import GenerateRequest, unpack_ids
from imp_server.engine.client.scripted import Action

from tests.live.toy_server import TOOLS_CHATML, call_text, toy_server
from tests.toy import bpe_model

CODEX = os.environ.get("CODEX", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CODEX, reason="CODEX names no program; `make codex` fetches it"),
]
MODEL = bpe_model()
ASK = "ls; read answer; echo got-$answer"
SESSION = re.compile(r"session ID (\d+)")
"""What Codex tells the model of a command that goes on."""


def prompt_of(request: GenerateRequest) -> str:
    return MODEL.detokenize(unpack_ids(request.ids), skip_special=False)


def answer(request: GenerateRequest, _choice: int) -> tuple[Action, ...]:
    """Calls one tool, then another with what the first one told, then ends."""
    prompt = prompt_of(request)
    if "got-marker" in prompt:
        text = "The marker is there."
    elif session := SESSION.search(prompt):
        text = "It asks." + call_text("write_stdin", session_id=int(session.group(1)), chars="marker\n")
    else:
        text = "I'll look." + call_text("exec_command", cmd=ASK, tty=True, yield_time_ms=4000)
    return (MODEL.tokenize(text, control=False),)


@pytest.mark.timeout(120)
def test_codex_runs_a_task_of_two_tools(tmp_path: Path) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    (work / "marker-7391.txt").write_text("x")
    with toy_server(TOOLS_CHATML, make_model=bpe_model, context_length=262_144, check_replies=True) as server:
        server.engine.answer_with(answer)
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
        first, second, last = (prompt_of(request) for request in server.engine.requests_seen[-3:])
    assert "marker-7391.txt" not in first
    assert SESSION.search(second) and "got-marker" not in second
    # On a busy machine the listing may come with the second tool only.
    assert "marker-7391.txt" in last and "got-marker" in last and last.count("<tool_call>{") == 2
