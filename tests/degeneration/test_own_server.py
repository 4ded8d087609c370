"""The default model on our own server: what fails here, fails in a reference engine with the same weights, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from imp_server.degeneration.baseline import read_baseline
from imp_server.degeneration.main import main
from imp_server.resources import data_folder

from tests.conformance.conftest import KEY, served

BASELINE = data_folder("conformance") / "golden" / "degeneration-smollm2.json"


def verdicts(tmp_path: Path, *options: str) -> dict[str, str]:
    out = tmp_path / "found.json"
    with served() as target:
        main(["--url", target.url, "--key", KEY, "--baseline", str(BASELINE), "--quick", "--json", str(out), *options])
    return {row["check"]: row["verdict"] for row in json.loads(out.read_text())["checks"]}


@pytest.mark.timeout(600)
def test_nothing_is_degenerated(tmp_path: Path) -> None:
    found = verdicts(tmp_path)
    assert {check for check, verdict in found.items() if verdict in ("degenerated", "fail")} == set()
    assert sum(verdict == "pass" for verdict in found.values()) > 30


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_of_the_corpus_is_degenerated(tmp_path: Path) -> None:
    found = verdicts(tmp_path, "--corpus")
    assert {check for check, verdict in found.items() if verdict in ("degenerated", "fail")} == set()
    assert sum(verdict == "pass" for verdict in found.values()) > 150
    assert found.keys() <= read_baseline(BASELINE).keys()
