"""The command line: exit codes, categories, the corpus, baselines."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from imp_server.degeneration.corpus import CorpusError, load_corpus
from imp_server.degeneration.findings import CATEGORIES
from imp_server.degeneration.main import main

from tests.degeneration.fake_server import Said, fake_server, last_text, sensible


def off_topic(body: dict[str, Any]) -> Said:
    return Said("I like trains.") if "17 + 25" in last_text(body) else sensible(body)


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server() as url:
        assert main(["--url", url, "--only", "adherence"]) == 0
        assert "4 pass" in capsys.readouterr().out
        assert main(["--url", url, "--only", "poetry"]) == 2
        assert "poetry" in capsys.readouterr().err
    with fake_server(off_topic) as url:
        assert main(["--url", url + "/v1", "--only", "adherence"]) == 1
        assert "FAIL: adherence/sum/contains" in capsys.readouterr().out
    assert main(["--url", "http://127.0.0.1:9"]) == 2
    assert "no answer from" in capsys.readouterr().err


def test_a_baseline_tells_a_weak_model_from_a_degenerated_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weak, good = tmp_path / "weak.json", tmp_path / "good.json"
    with fake_server(off_topic) as url:
        assert main(["--url", url, "--only", "adherence", "--write-baseline", str(weak), "transformers 5"]) == 1
        assert main(["--url", url, "--only", "adherence", "--baseline", str(weak)]) == 0
        assert "1 weak model" in capsys.readouterr().out
    with fake_server() as url:
        assert main(["--url", url, "--only", "adherence", "--write-baseline", str(good), "transformers 5"]) == 0
    with fake_server(off_topic) as url:
        assert (
            main(["--url", url, "--only", "adherence", "--baseline", str(good), "--json", str(tmp_path / "out.json")])
            == 1
        )
    assert "DEGENERATED: adherence/sum" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out.json").read_text())["checks"]
    assert {row["verdict"] for row in rows} == {"pass", "degenerated"}
    good.write_text(good.read_text().replace("transformers 5", "imp 0.1"))
    assert main(["--url", "http://127.0.0.1:9", "--baseline", str(good)]) == 2
    assert "own reference" in capsys.readouterr().err


def test_what_failed_in_one_run_of_a_reference_is_the_models(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    for number, rule in enumerate((off_topic, sensible)):
        with fake_server(rule) as url:
            main(["--url", url, "--only", "adherence", "--write-baseline", str(path), f"transformers {number}"])
    kept = json.loads(path.read_text())
    assert kept["engine"] == "transformers 0; transformers 1"
    assert kept["checks"]["adherence/sum/contains"] == "fail"
    with fake_server(off_topic) as url:
        assert main(["--url", url, "--only", "adherence", "--baseline", str(path)]) == 0
    path.write_text(path.read_text().replace("transformers 1", "imp 1"))
    assert main(["--url", "http://127.0.0.1:9", "--baseline", str(path)]) == 2


def test_the_corpus() -> None:
    records = load_corpus()
    assert len(records) >= 250 and len({record.language for record in records}) >= 10
    of_category = {category: sum(r.category == category for r in records) for category in CATEGORIES}
    assert all(of_category[c] >= 20 for c in ("repetition", "think-leak", "special-tokens", "adherence", "multi-turn"))
    assert sum(record.quick for record in records) >= 35
    long = next(record for record in records if record.filler)
    assert long.hidden in long.texts()[-1] and long.texts() == replace(long).texts()


@pytest.mark.parametrize(
    "line,told",
    [
        ("{", "x.jsonl:1"),
        ('{"id": "a"}', "x.jsonl:1"),
        ('{"id":"a","category":"poems","language":"en","turns":["x"],"checks":["no_loop"]}', "no category 'poems'"),
        ('{"id":"a","category":"format","language":"en","turns":["x"],"checks":["pretty"]}', "no check pretty"),
        ('{"id":"a","category":"format","language":"en","turns":[],"checks":["no_loop"]}', "can't be empty"),
    ],
)
def test_a_broken_corpus_names_its_place(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(CorpusError, match=told):
        load_corpus(tmp_path)


def test_needs_python_alone() -> None:
    """`analysis/degen_suite.py` runs where nothing but Python is installed."""
    script = Path(__file__).parents[2] / "analysis" / "degen_suite.py"
    done = subprocess.run([sys.executable, "-I", "-S", str(script), "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--baseline" in done.stdout, done.stderr


def test_records_are_asked(tmp_path: Path) -> None:
    lines = [
        {
            "id": "f-1",
            "category": "format",
            "language": "en",
            "turns": ["What is 17 + 25?"],
            "checks": {"contains": "42", "stream_eq": True},
        },
        {
            "id": "m-1",
            "category": "multi-turn",
            "language": "en",
            "turns": ["hello", "17 + 25"],
            "checks": {"contains": "43"},
        },
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    out = tmp_path / "out.json"
    with fake_server() as url:
        assert main(["--url", url, "--only", "format,multi-turn", "--corpus", str(tmp_path), "--json", str(out)]) == 1
    verdicts = {row["check"]: row["verdict"] for row in json.loads(out.read_text())["checks"]}
    assert verdicts["format/f-1/contains"] == verdicts["format/f-1/stream_eq"] == "pass"
    assert verdicts["multi-turn/m-1/contains"] == "fail"
