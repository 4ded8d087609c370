"""The preset file: which names a knob has there, who wins, and that a wrong section harms no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from imp_server.config.load import load
from imp_server.config.presets import Preset, read_presets
from imp_server.core import ConfigError

TEXT = """\
version = 1
[*]
max-seq-len = 8192
temperature = 0.5
[small]
model = smollm2            ; where it is
alias = fast, claude-*
tags = chat, small
load-on-startup = true
temperature = 0.7
-n = 99
IMP_THREADS = 3
kv_cache.size_mib = 77
[large]
"""


def presets(tmp_path: Path, text: str = TEXT, flags: dict[str, list[str]] | None = None) -> dict[str, Preset]:
    file = tmp_path / "models.ini"
    file.write_text(text)
    found = read_presets(file, load(flags))
    return {**found.sections, "*": found.shared}


def test_a_section_says_what_its_model_gets(tmp_path: Path) -> None:
    found = presets(tmp_path)
    assert list(found) == ["small", "large", "*"] and not any(preset.problem for preset in found.values())
    small = found["small"]
    assert (small.config.model.tags, small.loads_at_start) == (("chat", "small"), True)
    config = small.config
    assert (config.model.path, config.model.alias, config.model.max_seq_len) == ("smollm2", "fast, claude-*", 8192)
    assert (config.sampling.temperature, config.server.max_tokens, config.cpu.threads) == (0.7, 99, 3)
    assert config.kv_cache.size_mib == 77
    for plain in (found["large"], found["*"]):
        assert (plain.config.model.max_seq_len, plain.config.sampling.temperature) == (8192, 0.5)
        assert (plain.config.model.tags, plain.loads_at_start, plain.config.model.path) == ((), False, "")


def test_command_line_then_section_then_all_then_file_then_default(tmp_path: Path) -> None:
    (tmp_path / "imp.toml").write_text("[model]\nmax_seq_len = 1\n[sampling]\ntemperature = 0.1\ntop_k = 9\n")
    file = tmp_path / "models.ini"
    file.write_text(TEXT)
    loaded = load({"model.max_seq_len": ["64"]}, variables={"IMP_KV_CACHE_SIZE_MIB": "5"}, file=tmp_path / "imp.toml")
    small = read_presets(file, loaded).sections["small"].config
    assert (small.model.max_seq_len, small.kv_cache.size_mib) == (64, 5)  # flag, variable
    assert (small.sampling.temperature, small.sampling.top_k, small.sampling.top_p) == (0.7, 9, -1)
    assert read_presets(file, loaded).shared.config.sampling.temperature == 0.5
    assert read_presets(None, loaded).shared.config.sampling.temperature == 0.1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("max-sqe-len = 5", "there is no option max-sqe-len; did you mean max-seq-len"),
        ("max-seq-len = five", "[bad] max-seq-len: 'five' isn't valid for model.max_seq_len"),
        ("port = 1", "port is of the whole server"),
        ("api-key = x", "api-key is of the whole server"),
        ("models-max = 1", "models-max is of the whole server"),
        ("load-on-startup = perhaps", "expected: true or false"),
        ("ngl = 5", "a model is whole where its backend is"),
        ("temperature", "isn't valid for sampling.temperature"),
    ],
)
def test_a_wrong_section_is_told_of_and_harms_no_other(tmp_path: Path, line: str, told: str) -> None:
    found = presets(tmp_path, f"{TEXT}\n[bad]\n{line}\n[good]\ntop-k = 3\n")
    assert told in found["bad"].problem
    assert not found["good"].problem and found["good"].config.sampling.top_k == 3
    assert not found["small"].problem


def test_a_file_that_cant_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.ini"):
        read_presets(tmp_path / "nowhere.ini", load())
    with pytest.raises(ConfigError, match=r"temperature stands above the first \[section\]"):
        presets(tmp_path, "temperature = 1\n[a]\n")
