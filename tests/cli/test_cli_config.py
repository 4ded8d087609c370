"""--help, the fields of config/ and docs/config.md say the same; `imp config show` tells origins and hides keys."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import click
import pytest
from imp_server.cli._knob_options import KnobCommand, KnobOption, with_config
from imp_server.cli.main import run
from imp_server.config.docs import config_page
from imp_server.config.knobs import knobs
from imp_server.config.load import Loaded, load


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    return tmp_path


def test_the_page_is_what_the_fields_say(repo_root: Path) -> None:
    assert (repo_root / "docs" / "config.md").read_text() == config_page(), "run: imp config docs > docs/config.md"


def test_help_page_and_fields_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--help-all"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    page = config_page()
    for knob in knobs().values():
        for flag in knob.flags:
            assert flag in shown, flag
            assert f"`{flag}`" in page, flag
        assert f"`{knob.variable}`" in page
        assert "".join(knob.help.split()) in shown, knob.key
        assert knob.help.replace("|", "\\|") in page, knob.key
    options = {name for p in _command().params if isinstance(p, KnobOption) for name in p.opts}
    assert options <= set(re.findall(r"`(--[\w-]+)`", page))


def _command() -> click.Command:
    @click.command(cls=KnobCommand)
    @with_config()
    def command(loaded: Loaded) -> None: ...

    return command


def test_the_toml_that_is_shown_gives_the_same_configuration(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "show", "--port", "9", "--lora", "a=b", "--lora", "c=d", "--no-overlap"]) == 0
    text = capsys.readouterr().out
    tomllib.loads(text)
    (empty_folder / "imp.toml").write_text(text)
    config = load(file=empty_folder / "imp.toml").config
    assert config.server.port == 9 and config.adapters.lora == ("a=b", "c=d") and config.engine.overlap == "off"


def test_origins(empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (empty_folder / "imp.toml").write_text("[server]\nmax_n = 3\n")
    monkeypatch.setenv("IMP_HOST", "0.0.0.0")
    assert run(["config", "show", "--origin", "--port", "9", "--set", "log.level=debug"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert 'host = ["0.0.0.0"] # IMP_HOST' in lines
    assert "port = 9 # --port" in lines
    assert 'level = "debug" # --set' in lines
    assert f"max_n = 3 # {empty_folder}/imp.toml" in lines
    assert "max_stop = 16 # default" in lines


def test_changed_only_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--changed", "--json", "--threads", "2", "--kv-int8"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "cpu": {"threads": {"value": 2, "origin": "--cpu-threads"}},
        "kv_cache": {"dtype": {"value": "int8", "origin": "--kv-cache-dtype"}},
    }


@pytest.mark.parametrize("form", ["--json", "--origin"])
def test_keys_are_never_printed(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--api-key", "s3cret", form]) == 0
    out = capsys.readouterr()
    assert "s3cret" not in out.out + out.err and "(hidden)" in out.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--prot", "1"], "Did you mean"),
        (["--set", "server.prot=1"], "did you mean server.port"),
        (["--set", "server.port"], "section.key=value"),
        (["--port", "x"], "integer >= 0"),
        (["--config", "gone.toml"], "no configuration file gone.toml"),
        (["--mmproj", "x"], "images aren't supported"),
        (["--max-queued-tokens", "-1"], "integer >= 0"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_1(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "show", *arguments]) == 1
    err = capsys.readouterr().err
    assert part in err
    assert len(err.strip().splitlines()) == 1 or err.startswith("Usage:")


def test_flags_without_effect_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--changed", "--max-images-per-request", "3", "--no-nvfp4"]) == 0
    out = capsys.readouterr()
    told = [line.partition(" here: ")[0] for line in out.err.splitlines()]
    assert told == ["imp: --max-images-per-request has no effect", "imp: --no-nvfp4 has no effect"]
    assert out.out == ""
