"""The default model on our own server: what fails here, fails in a reference engine with the same weights, too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from imp_server.degeneration.baseline import read_baseline
from imp_server.degeneration.main import main
from imp_server.resources import data_folder

from tests.conformance.conftest import KEY, served

BASELINE = data_folder("conformance") / "golden" / "degeneration-smollm2.json"


PLAIN_LOOP = re.compile(r'^imp_overlap_waits_total\{[^}]*reason="host_sampling"[^}]*\} (\S+)', re.M)
"""Rows that the overlapped loop left to the plain way, as the host samples them."""


def verdicts(tmp_path: Path, *options: str) -> tuple[dict[str, str], float]:
    """Of each check; and how often the counter above was raised."""
    out = tmp_path / "found.json"
    with served() as target:
        main(["--url", target.url, "--key", KEY, "--baseline", str(BASELINE), "--quick", "--json", str(out), *options])
        metrics = httpx.get(f"{target.url}/metrics").text
    plain = sum(map(float, PLAIN_LOOP.findall(metrics)))
    return {row["check"]: row["verdict"] for row in json.loads(out.read_text())["checks"]}, plain


@pytest.mark.timeout(600)
def test_nothing_is_degenerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the overlapped loop, whose arm with mirostat 2 runs the plain way."""
    monkeypatch.setenv("IMP_OVERLAP", "on")
    found, n_plain = verdicts(tmp_path)
    assert n_plain > 0 and found["constrained/schema-mirostat/fits"] == "pass"
    assert {check for check, verdict in found.items() if verdict in ("degenerated", "fail")} == set()
    assert sum(verdict == "pass" for verdict in found.values()) > 30


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_of_the_corpus_is_degenerated(tmp_path: Path) -> None:
    found, _ = verdicts(tmp_path, "--corpus")
    assert {check for check, verdict in found.items() if verdict in ("degenerated", "fail")} == set()
    assert sum(verdict == "pass" for verdict in found.values()) > 150
    assert found.keys() <= read_baseline(BASELINE).keys()
