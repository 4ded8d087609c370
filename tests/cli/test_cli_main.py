"""Commands are found by folder, and every way to fail has its exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from imp_server import __version__
from imp_server.cli import main as main_module
from imp_server.cli._knob_options import COMMON
from imp_server.cli.main import imp, run
from imp_server.config.knobs import knobs
from imp_server.config.names import FOREIGN_FLAGS, NOT_YET
from imp_server.core import CapacityExceeded, HostOutOfMemory, InternalError, InvalidModel, UnsupportedModel, UserFault
from imp_server.weights.known import KNOWN

COMMANDS = imp.list_commands(click.Context(imp))
SOURCE_ROOT = str(Path(main_module.__file__).parents[2])


def test_every_module_of_the_folder_is_a_command() -> None:
    assert {"pull", "ls", "rm", "show", "config", "completion"} <= set(COMMANDS)
    for name in COMMANDS:
        command = imp.get_command(click.Context(imp), name)
        assert isinstance(command, click.Command) and command.help, name


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], *([name, "--help"] for name in COMMANDS)])
def test_help_exits_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert "Usage: imp" in capsys.readouterr().out


def test_help_marks_flags_that_have_no_effect_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help-all"]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).count("No effect yet.") == len(NOT_YET)
    assert "\n  [MODEL]" not in out, "the argument is in the usage line, where it is explained"


@pytest.mark.parametrize("flag", ["--version", "-v", "-V"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([flag]) == 0
    assert capsys.readouterr().out == f"imp {__version__}\n"


@pytest.mark.parametrize("arguments", [["sho"], ["ls", "--nonsense"], ["pull"]])
def test_usage_errors_exit_1_with_usage_on_stderr(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 1
    out = capsys.readouterr()
    assert out.out == "" and "Usage: imp" in out.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserFault("x\ny"), 1),
        (HostOutOfMemory("x y"), 2),
        (MemoryError(), 2),
        (InvalidModel("x y"), 5),
        (UnsupportedModel("x y"), 6),
        (InternalError("x y"), 7),
        (ZeroDivisionError("x"), 7),
        (KeyboardInterrupt(), 8),
        (CapacityExceeded("x y"), 9),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(main_module.Commands, "get_command", lambda *_: failing)
    assert run(["ls"]) == code
    err = capsys.readouterr().err.lstrip("\n")  # click ends the line that ^C stands on
    assert err.startswith("imp: ") and len(err.splitlines()) == 1


def test_a_closed_pipe_is_no_error() -> None:
    script = f"{sys.executable} -m imp_server.cli.main config docs | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "# Configuration\n" and done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_IMP_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "found"),
    [("imp p", "plain,pull"), ("imp pull smollm2", "plain,smollm2-1.7b"), ("imp show ./x", "file,./x")],
)
def test_completion_completes(words: str, found: str, tmp_path: Path) -> None:
    environment = {"_IMP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code = "from imp_server.cli.main import imp; imp.main(prog_name='imp')"
    environment |= {"PYTHONPATH": SOURCE_ROOT, "PATH": "/bin", "IMP_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert found in done.stdout.splitlines(), done.stderr


def test_light_commands_stay_light() -> None:
    """`imp pull --help` loads neither the server, the hub client nor torch."""
    code = (
        "import sys; from imp_server.cli.main import run; run(['pull', '--help']); "
        "print([m for m in ('torch', 'huggingface_hub', 'blacksheep', 'tokenizers', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_pipe_that_nobody_reads_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from imp_server.cli.main import run; sys.exit(run(['config', 'show']))"
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=pipe,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": SOURCE_ROOT},
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("serv", "did you mean serve?"),
        ("lst", "did you mean list or ls?"),
        ("download", "did you mean pull?"),
        ("status", "did you mean ps?"),
        ("version", "did you mean --version?"),
        ("search", "did you mean ls --known?"),
        ("create", "did you mean serve FILE --alias NAME?"),
        ("push", "imp sends no models anywhere. The commands are"),
        ("stop", "a server ends by Ctrl-C"),
        ("xyzzy", "; the commands are"),
    ],
)
def test_a_typo_gets_a_suggestion(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([typed]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert f"there is no command {typed}" in err and meant in err


@pytest.mark.parametrize("arguments", [["help"], ["help", "ls"], ["help", "serve"]])
def test_help_is_a_word_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    asked = capsys.readouterr().out
    assert run([*arguments[1:], "--help"]) == 0
    assert asked == capsys.readouterr().out


def test_names_of_other_programs_are_ours(capsys: pytest.CaptureFixture[str]) -> None:
    for alias, name in main_module.ALIASES.items():
        assert run([alias, "--help"]) == 0
        shown = capsys.readouterr().out.replace(f"imp {alias}", f"imp {name}")
        assert run([name, "--help"]) == 0
        assert shown == capsys.readouterr().out


def test_a_key_without_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--set", "port=1"]) == 1
    assert "did you mean server.port?" in capsys.readouterr().err


def test_help_shows_the_common_options_and_an_example_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    out = capsys.readouterr().out
    before, _, options = out.partition("\nOptions:\n")
    assert before.split("\n\n")[1].startswith("Example: imp serve ")
    shown = [line.split()[0] for line in options.splitlines() if line.startswith("  -")]
    assert len(shown) == len(COMMON) + len(["--open", "--config", "--set", "--help-all", "-h"])
    assert "more options: imp serve --help-all" in options
    assert run(["serve", "--help-all"]) == 0
    everything = capsys.readouterr().out
    assert all(knob.flag in everything for knob in knobs().values()) and set(knobs()) >= COMMON


@pytest.mark.parametrize("typed", ["--kv-fp1", "--no-prefix-cach", "--mmproy", "--prt"])
def test_hidden_options_are_never_suggested(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", typed]) == 1
    suggested = set(re.findall(r"'(--[a-z0-9-]+)'", capsys.readouterr().err)) - {typed}
    command = imp.get_command(click.Context(imp), "serve")
    assert isinstance(command, click.Command)
    hidden = {name for p in command.params if isinstance(p, click.Option) and p.hidden for name in p.opts}
    assert hidden and not suggested & hidden
    if typed == "--prt":
        assert "--port" in suggested


def test_settings_of_this_folder_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["config", "show"]) == 0
    assert capsys.readouterr().err == ""
    (tmp_path / "imp.toml").write_text("[server]\nport = 9000\n")
    assert run(["config", "show"]) == 0
    assert capsys.readouterr().err == "imp: settings are taken from imp.toml in this folder\n"
    assert run(["config", "show", "--config", "imp.toml"]) == 0
    assert capsys.readouterr().err == "", "whoever names it knows"


@pytest.mark.parametrize("words", ["imp serve ", "imp chat ", "imp bench "])
def test_what_can_be_served_is_offered(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"_IMP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2", "IMP_HOME": str(tmp_path)}
    code = "from imp_server.cli.main import imp; imp.main(prog_name='imp')"
    environment |= {"PYTHONPATH": SOURCE_ROOT, "PATH": "/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    offered = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert offered == {known.name for known in KNOWN.values() if known.runs}


def test_choices_of_an_option_complete(tmp_path: Path) -> None:
    environment = {"_IMP_COMPLETE": "bash_complete", "COMP_WORDS": "imp serve --backend c", "COMP_CWORD": "3"}
    code = "from imp_server.cli.main import imp; imp.main(prog_name='imp')"
    environment |= {"PYTHONPATH": SOURCE_ROOT, "PATH": "/bin", "IMP_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["plain,cpu", "plain,cuda"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "-c", "4096"], "no option -c; here it is --max-seq-len"),
        (["serve", "--ctx-size=4096"], "no option --ctx-size; here it is --max-seq-len"),
        (["serve", "-ngl", "99"], "no option -ngl; leave it out: a model is whole where its backend is"),
        (["chat", "-np", "2"], "no option -np; here it is --max-batch"),
        (["chat", "--temp", "1"], "no option --temp; here it is --temperature"),
        (["run", "--keepalive", "5m"], "no option --keepalive; here it is --idle-unload-seconds N"),
        (["serve", "--num-ctx", "4096"], "no option --num-ctx; here it is --max-seq-len"),
        (["gc", "-c", "4096"], "No such option '-c'"),
    ],
)
def test_flags_of_other_servers_point_to_ours(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1
    assert said in capsys.readouterr().err


def test_every_flag_of_other_servers_leads_to_one_of_ours() -> None:
    serve = main_module.imp.get_command(click.Context(main_module.imp), "serve")
    assert serve is not None
    names = {name for option in serve.params for name in option.opts}
    ours = {hint.split()[0] for hint in FOREIGN_FLAGS.values() if hint.startswith("--")}
    assert ours and ours <= names
    assert not names & set(FOREIGN_FLAGS)
