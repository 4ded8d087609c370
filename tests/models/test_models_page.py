"""docs/models.md names exactly the families that there are, and a known refusal says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from imp_server.core import UnsupportedModel
from imp_server.models.opening import families_by_architecture, families_by_model_type, open_model
from imp_server.models.refused import REASONS

from tests.models.family_cases import CASES
from tests.models.tiny_gguf import write_tiny_llama

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)


def test_the_table_is_complete() -> None:
    gguf, checkpoints = (re.findall(r"`([\w-]+)`", " ".join(row[i] for row in ROWS)) for i in (0, 1))
    assert sorted({*gguf}) == sorted(families_by_architecture())
    assert sorted(checkpoints) == sorted(families_by_model_type())


def test_each_family_has_a_case() -> None:
    assert families_by_model_type().keys() - {case.kind for case in CASES.values()} == {
        "minicpm",  # by way of granite
        "kimi_k2",  # by way of deepseek_v3
        "bailing_moe_v2",  # by way of glm4_moe
    }


def test_families_that_run_are_not_refused() -> None:
    assert not REASONS.keys() & {*families_by_architecture(), *families_by_model_type()}


def test_a_refusal_names_the_reason(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf")
    data = path.read_bytes()
    at = data.index(b"llama", data.index(b"general.architecture"))
    path.write_bytes(data[:at] + b"mamba" + data[at + 5 :])
    with pytest.raises(UnsupportedModel, match=r"'mamba' isn't supported \(it has layers with a recurrent state"):
        open_model(path)
