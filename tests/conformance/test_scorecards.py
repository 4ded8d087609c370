"""The scripts that compare servers: their tables say what the reports do, and each server's command is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis import scorecards, serving_peers
from analysis.structured_bench import unrepeated


def row(dialect: str, must: tuple[int, int], should: tuple[int, int], not_claimed: int = 0) -> dict[str, Any]:
    shares = {"MUST": dict(zip(("passed", "judged"), must)), "SHOULD": dict(zip(("passed", "judged"), should))}
    return {"dialect": dialect, **shares, "not claimed": not_claimed}


def test_the_kits_table() -> None:
    reports = {
        "imp": {"summary": [row("http", (8, 8), (7, 7)), row("tgi", (0, 0), (0, 0), 5)]},
        "nginx": {"summary": [row("http", (7, 8), (0, 0), 2)]},
    }
    assert scorecards.conformance_table(reports).splitlines() == [
        "| dialect | imp | imp behind nginx |",
        "| --- | --- | --- |",
        "| http | 8/8 + 7/7 | 7/8, 2 n.c. |",
        "| tgi | - | - |",
    ]


def test_the_suites_table() -> None:
    verdicts = {"a/1": "pass", "a/2": "weak model", "b/1": "degenerated", "b/2": "skip", "c/1": "fail"}
    checks = [{"check": check, "verdict": verdict} for check, verdict in verdicts.items()]
    last = scorecards.degen_table({"imp": {"checks": checks}}).splitlines()[-1]
    assert last == "| imp | 1 | 1 | 2 | 1 | b/1, c/1 |"


@pytest.mark.parametrize("name", scorecards.KINDS)
def test_each_command_listens_where_it_is_asked(name: str, tmp_path: Path) -> None:
    at = scorecards.Place(["program"], Path("x.gguf"), tmp_path, 4711, 4712)
    kind = scorecards.KINDS[name]
    told = " ".join(kind.command(at)) + "".join(path.read_text() for path in tmp_path.iterdir())
    assert "4711" in told and ("4712" in told) == kind.is_in_front
    assert ("x.gguf" in told) != kind.is_in_front


def test_the_table_of_loads() -> None:
    spread = {"p50": 10.2, "p90": 20.7}
    run = {"load": "4 clients", "output_tokens_per_s": 99.6}
    report = {"runs": [{**run, "first_token_ms": spread, "per_token_ms": spread, "end_to_end_ms": spread}]}
    found = {("imp", "quiet"): report, ("llama-server", "quiet"): report, ("imp", "busy"): report}
    lines = serving_peers.table(found).splitlines()
    assert lines[2] == "| quiet, 4 | imp | 100 | 10 | 21 | 10.2 | 20.7 | 10 |"
    assert [line.split(" | ")[:2] for line in lines[3:]] == [["| quiet, 4", "llama-server"], ["| busy, 4", "imp"]]


@pytest.mark.parametrize(
    ("prompt", "answer", "n_good"),
    [
        ([1, 2, 3, 4], [5, 6, 7, 8, 9], 5),
        ([1, 2, 3, 4], [5, 1, 2, 3, 4], 4),  # the prompt's words
        ([1, 2], [5, 6, 7, 8, 5, 6, 7, 8], 7),
        ([1, 2, 3, 4, 1, 2, 3, 4], [9, 8, 7, 6], 4),  # the prompt's own matter is the prompt's
        ([1, 2, 3], [4, 9, 1, 2, 3, 4], 5),  # across the border
        ([1, 2, 3], [1, 2, 3, 5], 4),  # three are no four
    ],
)
def test_how_far_an_answer_does_not_repeat_itself(prompt: list[int], answer: list[int], n_good: int) -> None:
    assert unrepeated(prompt, answer) == answer[:n_good]
