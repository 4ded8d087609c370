"""Plots of a report, where matplotlib is installed (the extra `plots`)."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from imp_server.core import ConfigError


def pictures(report: dict[str, Any]) -> dict[str, bytes]:
    """Title -> PNG: throughput and latency over the loads. Raises ConfigError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'imp-server[plots]'") from None
    matplotlib.use("Agg")
    loads = [run["load"] for run in report["runs"]]
    return {
        "Output tokens per second": _bars(loads, {"tokens/s": [run["output_tokens_per_s"] for run in report["runs"]]}),
        "First token, milliseconds": _bars(loads, _spread(report, "first_token_ms")),
        "Per output token, milliseconds": _bars(loads, _spread(report, "per_token_ms")),
    }


def _spread(report: dict[str, Any], key: str) -> dict[str, list[float]]:
    return {part: [run[key][part] for run in report["runs"]] for part in ("p50", "p90", "p99")}


def _bars(loads: list[str], series: dict[str, list[float]]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        places = [at + (i - (len(series) - 1) / 2) * width for at in range(len(loads))]
        axes.bar(places, values, width * 0.9, label=name)
    axes.set_xticks(range(len(loads)), loads)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(frameon=False)
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def write_plots(folder: Path, made: dict[str, bytes]) -> list[Path]:
    """A file for each picture. Raises ConfigError if the folder can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for title, png in made.items():
            path = folder / (title.lower().replace(",", "").replace(" ", "-") + ".png")
            path.write_bytes(png)
            paths.append(path)
    except OSError as wrong:
        raise ConfigError(f"{folder}: {wrong.strerror or wrong}") from None
    return paths


def in_base64(made: dict[str, bytes]) -> dict[str, str]:
    return {title: base64.b64encode(png).decode() for title, png in made.items()}
