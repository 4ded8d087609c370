"""Load on a server that answers by a rule: every figure, closed and open, and what fails is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from imp_server.cli.main import run as imp
from imp_server.serving_bench.exchange import BenchTarget, Timing
from imp_server.serving_bench.figures import Promise, figures, percentile
from imp_server.serving_bench.load import Plan, run
from imp_server.serving_bench.metrics import told
from imp_server.serving_bench.shapes import SHAPES

from tests.degeneration.fake_server import Said, fake_server


def four_words(_: dict[str, Any]) -> Said:
    return Said("one two three four")


def test_closed_and_open() -> None:
    with fake_server(four_words) as url:
        target = BenchTarget(url + "/v1", "", "fake", 10)
        closed = asyncio.run(run(target, Plan(("chat", "json"), 12, 16, clients=3)))
        opened = asyncio.run(run(target, Plan(("chat",), 8, 16, rate=400)))
    assert len(closed) == 12 and all(t.ok for t in closed), [t.error for t in closed]
    assert {t.shape for t in closed} == {"chat", "json"}
    assert all(t.first_token_s and len(t.gaps_s) == 3 and t.first_token_s <= t.end_s for t in closed)
    assert len(opened) == 8 and [t.asked_at_s for t in opened] == sorted(t.asked_at_s for t in opened)


def test_the_same_seed_asks_the_same() -> None:
    import random

    for make in SHAPES.values():
        assert make(random.Random(5), 8) == make(random.Random(5), 8)
        assert make(random.Random(5), 8) != make(random.Random(6), 8)
    assert len(SHAPES["agent"](random.Random(1), 8).body["tools"]) == 20


@pytest.mark.parametrize("temperature", [None, 0.8])
def test_the_temperature_is_asked_for(temperature: float | None) -> None:
    bodies: list[dict[str, Any]] = []

    def noted(body: dict[str, Any]) -> Said:
        bodies.append(body)
        return Said("one")

    with fake_server(noted) as url:
        plan = Plan(("chat",), 2, 4, clients=1, temperature=temperature)
        asyncio.run(run(BenchTarget(url, "", "fake", 10), plan))
    assert [body.get("temperature") for body in bodies] == [temperature] * 2


def test_what_fails_is_told() -> None:
    def cut(frames: list[bytes]) -> list[bytes]:
        return frames[:-1]

    with fake_server(four_words, cut) as url:
        (timing,) = asyncio.run(run(BenchTarget(url, "", "fake", 10), Plan(("chat",), 1, 4, clients=1)))
    assert timing.error == "the stream has no [DONE]" and not timing.ok
    (timing,) = asyncio.run(run(BenchTarget("http://127.0.0.1:9", "", "fake", 10), Plan(("chat",), 1, 4, clients=1)))
    assert timing.status == 0 and timing.error


def test_figures() -> None:
    timings = [Timing("chat", float(i), 200, "", 0.1 * (i + 1), 1.0, [0.05], 10, 5, 11) for i in range(4)]
    timings.append(Timing("chat", 4.0, 503, "busy"))
    made = figures(timings, Promise(first_token_ms=250))
    assert made["requests"] == 5 and made["failed"] == 1 and made["cached_share"] == 0.5
    assert made["first_token_ms"]["p50"] == pytest.approx(250) and made["end_to_end_ms"]["mean"] == pytest.approx(1000)
    assert made["per_token_ms"]["p50"] == pytest.approx(1000 * (0.9 + 0.8 + 0.7 + 0.6) / 4 / 10)
    assert made["promise_kept_share"] == pytest.approx(2 / 5) and made["output_tokens_per_s"] == pytest.approx(44 / 4)
    assert figures([], Promise())["requests_per_s"] == 0.0


@pytest.mark.parametrize("percent,value", [(0, 1.0), (50, 2.5), (100, 4.0), (99, 3.97)])
def test_percentiles(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == pytest.approx(value)


def test_drafts_of_two_servers() -> None:
    before = told("imp_spec_drafted_total 10\nimp_spec_accepted_total 4\n")
    assert told("imp_spec_drafted_total 30\nimp_spec_accepted_total 14\n").share_since(before) == 0.5
    vllm = 'vllm:spec_decode_num_draft_tokens_total{engine="0"} 8\n'
    vllm += 'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 2.0\n'
    assert told(vllm).share_since(told("")) == 0.25
    assert told("nothing").share_since(told("")) is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, page = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "page.html"
    with fake_server(four_words) as url:
        sizes = ["--url", url, "--requests", "4", "--clients", "1,2", "--promise-first", "5000"]
        assert imp(["bench", "serve", *sizes, "--json", str(one), "--html", str(page)]) == 0
        assert imp(["bench", "serve", *sizes, "--json", str(other)]) == 0
    out = capsys.readouterr().out
    assert "2 clients" in out and "first token" in out and "goodput" in out
    assert [run["load"] for run in json.loads(one.read_text())["runs"]] == ["1 client", "2 clients"]
    assert "2 clients" in page.read_text() and "http" in page.read_text()
    assert imp(["bench", "serve", "--compare", str(one), str(other)]) == 0
    assert "RATIO" in capsys.readouterr().out
    assert imp(["bench", "serve"]) == 1 and imp(["bench", "serve", "--url", "http://127.0.0.1:9"]) == 1
    one.write_text("{}")
    assert imp(["bench", "serve", "--compare", str(one), str(other)]) == 1
    assert "no report" in capsys.readouterr().err


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plots isn't installed")
    from imp_server.serving_bench.plots import pictures, write_plots

    spread = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
    runs = [{"load": "1 client", "output_tokens_per_s": 5.0, "first_token_ms": spread, "per_token_ms": spread}]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in write_plots(tmp_path, pictures({"runs": runs})))
