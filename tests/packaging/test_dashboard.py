"""The Grafana dashboard: each of its queries asks for what a server with a real engine tells."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.reports.test_metrics import ORIGINALS, VLLM
from tests.models.tiny_gguf import write_tiny_llama

DASHBOARD = Path(__file__).resolve().parents[2] / "packaging" / "grafana" / "imp.json"
FUNCTIONS = {"sum", "rate", "increase", "histogram_quantile", "by", "label_values", "le"}
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Name -> labels of its samples, after two chats with a tiny model."""
    folder = tmp_path_factory.mktemp("model")
    model = write_tiny_llama(folder / "tiny.gguf", context=1024)
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--port", "0", "--model", str(model)]
    command += ["--chat-template", "chatml", "--set", "engine.backend=reference", "--set", "kv_cache.max_blocks=64"]
    command += ["--set", f"responses.store_path={folder / 'responses.sqlite'}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        url = next(line for line in process.stdout if line.startswith("Server listening")).split()[-1]
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        for stream in (False, True):
            data = json.dumps(body | {"stream": stream}).encode()
            asked = urllib.request.Request(f"{url}/v1/chat/completions", data, {"content-type": "application/json"})
            urllib.request.urlopen(asked, timeout=60).read()
        text = urllib.request.urlopen(f"{url}/metrics", timeout=20).read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=30)
    found: dict[str, list[dict[str, str]]] = {}
    # The parser adds _total to what is called a counter; llama.cpp calls a gauge so.
    for family in text_string_to_metric_families(text.replace("n_tokens_max counter", "n_tokens_max gauge")):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def queries() -> list[tuple[str, dict[str, Any]]]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(f"{panel['title']} {target['refId']}", target) for panel in panels for target in panel["targets"]]


QUERIES = queries()


def selectors(expression: str) -> list[tuple[str, list[str]]]:
    """(metric, labels selected) of a query; label lists of `by (...)` are left out."""
    bare = re.sub(r"\bby\s*\([^)]*\)", "", expression)
    found = [(name, re.findall(r"(\w+)\s*[=!]", labels)) for name, labels in SELECTOR.findall(bare)]
    return [(name, labels) for name, labels in found if name not in FUNCTIONS and not name.startswith("__")]


def test_every_query_asks_for_what_is_there(samples: dict[str, list[dict[str, str]]]) -> None:
    assert len(QUERIES) > 30
    for title, target in QUERIES:
        expression = target["expr"]
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}"), title
        asked = selectors(expression)
        assert asked, title
        grouped = {n.strip() for by in re.findall(r"\bby\s*\(([^)]*)\)", expression) for n in by.split(",")}
        for metric, labels in asked:
            assert metric in samples, (title, metric)
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            has = set.intersection(*(set(one) for one in samples[metric]))
            assert {*labels, *grouped, *(shown if not grouped else ())} <= has, (title, metric, has)
            if "rate(" in expression or "increase(" in expression:
                assert metric.endswith(("_total", "_bucket")) or f"rate({metric}" not in expression, title
        if "histogram_quantile" in expression:
            assert all(metric.endswith("_bucket") for metric, _ in asked) and "le" in grouped, title


def test_every_name_of_the_original_and_of_vllm_is_told(samples: dict[str, list[dict[str, str]]]) -> None:
    assert [name for name in ORIGINALS if name not in samples] == []
    for name in VLLM:
        assert all(labels["model_name"] == "tiny" for labels in samples[name]), name
    assert samples["vllm:cache_config_info"] == [{"model_name": "tiny", "block_size": "16", "num_gpu_blocks": "64"}]
    assert set(samples["vllm:lora_requests_info"][0]) == {"max_lora", "running_lora_adapters", "waiting_lora_adapters"}


def test_panels_have_ids_and_places_of_their_own() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells and place["x"] + place["w"] <= 24, panel["title"]
        cells |= own
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) - {"__rate_interval", "__all"}
    assert used == variables
