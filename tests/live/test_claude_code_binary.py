"""The real Claude Code against a live server of 200k context: it runs a command that the model asks for, sends back
what the command said, and prints the model's end.

`make claude-code` installs it (240 MB) and runs this; elsewhere the environment variable CLAUDE_CODE names the program.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from imp_server.core import GenerateRequest, unpack_ids
from imp_server.engine.client.scripted import Action

from tests.live.toy_server import TOOLS_CHATML, call_text, toy_server
from tests.toy import bpe_model

CLAUDE_CODE = os.environ.get("CLAUDE_CODE", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLAUDE_CODE, reason="CLAUDE_CODE names no program; `make claude-code` fetches it"),
]
MODEL = bpe_model()


def prompt_of(request: GenerateRequest) -> str:
    return MODEL.detokenize(unpack_ids(request.ids), skip_special=False)


def answer(request: GenerateRequest, _choice: int) -> tuple[Action, ...]:
    """Looks at the folder, then ends. Requests without tools are about titles and the like."""
    prompt = prompt_of(request)
    if "marker-7391" in prompt:
        text = "The marker is there."
    elif '"Bash"' in prompt:
        text = "I'll look." + call_text("Bash", command="ls", description="List files")
    else:
        text = "A title"
    return (MODEL.tokenize(text, control=False),)


@pytest.mark.timeout(120)
def test_claude_code_runs_a_tool(tmp_path: Path) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    (work / "marker-7391.txt").write_text("x")
    with toy_server(TOOLS_CHATML, make_model=bpe_model, context_length=200_000, check_replies=True) as server:
        server.engine.answer_with(answer)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "toy",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "toy",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        command = [CLAUDE_CODE, "-p", "Is a marker here?", "--allowedTools", "Bash"]
        ran = subprocess.run(
            command, cwd=work, env=env, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL
        )
        prompts = [prompt_of(request) for request in server.engine.requests_seen]
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "The marker is there." in ran.stdout
    assert "marker-7391" not in prompts[0] and "marker-7391" in prompts[-1]
