"""imp beside llama-server as their clients see them: `imp bench serve` on both, in turn.

    python -m analysis.serving_peers MODEL.gguf OUT [--llama-server PROGRAM] [--threads 2] [--busy] [--clients 1,4,8,16]
    python -m analysis.serving_peers MODEL.gguf OUT --plot PNG

Both get the same file, threads, places and questions, at the same temperature; each load has questions of its own. Both
stand by while the other is asked. With `--busy` a process that never sleeps runs beside them. OUT gets the reports of
`imp bench serve` as JSON, SERVER.quiet.json or SERVER.busy.json; `--plot` draws what lies there (matplotlib) and prints
it as a table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.servers import IMP, KEY, NAME, free_port, started

HERE = Path(__file__).resolve().parents[1]
SERVERS = ("imp", "llama-server")
WHEN = ("quiet", "busy")
N_PLACES = 16
TEMPERATURE = "0.8"
COLOURS = {"imp": "#4a7fc1", "llama-server": "#b0b7c3"}


def commands(options: argparse.Namespace, ports: dict[str, int]) -> dict[str, list[str]]:
    shared = ["--alias", NAME, "--api-key", KEY]
    model, threads = str(options.model), str(options.threads)
    own = ["--model", model, "--port", str(ports["imp"]), "--threads", threads, "--max-batch", str(N_PLACES)]
    theirs = ["-m", model, "--port", str(ports["llama-server"]), "--jinja", "-t", threads, "-tb", threads]
    theirs += ["-np", str(N_PLACES), "-c", str(2048 * N_PLACES), "--metrics"]
    return {"imp": [*IMP, "serve", *own, *shared], "llama-server": [options.llama_server, *theirs, *shared]}


@contextlib.contextmanager
def company(is_busy: bool) -> Iterator[None]:
    """A process that keeps a core, where asked for."""
    if not is_busy:
        yield
        return
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def measure(options: argparse.Namespace) -> None:
    when = "busy" if options.busy else "quiet"
    ports = {name: free_port() for name in SERVERS}
    with contextlib.ExitStack() as stack:
        for name, command in commands(options, ports).items():
            stack.enter_context(started(command, options.out / f"{name}.{when}.log", ports[name]))
        stack.enter_context(company(options.busy))
        found: dict[str, dict[str, Any]] = {}
        for n_clients in options.clients.split(","):
            for name in SERVERS:
                report = asked(options, ports[name], n_clients)
                runs = found.get(name, {"runs": []})["runs"] + report["runs"]
                found[name] = {**report, "runs": runs}
    for name, report in found.items():
        (options.out / f"{name}.{when}.json").write_text(json.dumps(report, indent=1))


def asked(options: argparse.Namespace, port: int, n_clients: str) -> dict[str, Any]:
    path = options.out / "one.json"
    load = ["--clients", n_clients, "--requests", str(options.requests * max(2, int(n_clients)) // 2)]
    load += ["--max-tokens", "64", "--temperature", TEMPERATURE, "--seed", n_clients]
    load += [part for shape in options.shapes.split(",") for part in ("--shape", shape)]
    url = ["--url", f"http://127.0.0.1:{port}", "--key", KEY, "--model", NAME]
    subprocess.run([*IMP, "bench", "serve", *url, *load, "--json", str(path)], check=True, stdout=subprocess.DEVNULL)
    report: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return report


# --- what came of it -----------------------------------------------------------------------------


def reports(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    paths = {(name, when): out / f"{name}.{when}.json" for when in WHEN for name in SERVERS}
    return {key: json.loads(path.read_text()) for key, path in paths.items() if path.exists()}


def table(found: dict[tuple[str, str], dict[str, Any]]) -> str:
    head = (
        "machine, clients",
        "server",
        "tokens/s",
        "first token p50",
        "p90",
        "per token p50",
        "p90",
        "whole answer p50",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * 8]
    for when in WHEN:
        sides = [(name, found[name, when]) for name in SERVERS if (name, when) in found]
        for at in range(len(sides[0][1]["runs"]) if sides else 0):
            for name, report in sides:
                run = report["runs"][at]
                first, each, end = (run[key] for key in ("first_token_ms", "per_token_ms", "end_to_end_ms"))
                cells = [f"{when}, {run['load'].split()[0]}", name, f"{run['output_tokens_per_s']:.0f}"]
                cells += [f"{first['p50']:.0f}", f"{first['p90']:.0f}", f"{each['p50']:.1f}", f"{each['p90']:.1f}"]
                lines.append("| " + " | ".join([*cells, f"{end['p50']:.0f}"]) + " |")
    return "\n".join(lines)


def plot(found: dict[tuple[str, str], dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    panels = (
        ("output_tokens_per_s", "tokens per second"),
        ("first_token_ms", "first token, ms"),
        ("per_token_ms", "per token, ms"),
    )
    figure = Figure(figsize=(8, 4.2), dpi=80, layout="constrained")
    axes = figure.subplots(len(WHEN), len(panels), sharex=True)
    for row, when in enumerate(WHEN):
        for column, (key, title) in enumerate(panels):
            bars(axes[row][column], {name: found[name, when] for name in SERVERS if (name, when) in found}, key)
            axes[row][column].set_title(f"{title}, {when}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("clients", fontsize=8)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8
    )
    figure.savefig(path, format="png", metadata={"Software": None})


def bars(axis: Any, sides: dict[str, dict[str, Any]], key: str) -> None:
    """Medians, and a line up to the ninth decile where there is one."""
    for number, (name, report) in enumerate(sides.items()):
        runs = report["runs"]
        places = [at + 0.4 * (number - 0.5) for at in range(len(runs))]
        values = [run[key]["p50"] if isinstance(run[key], dict) else run[key] for run in runs]
        axis.bar(places, values, 0.36, label=name, color=COLOURS[name])
        if isinstance(runs[0][key], dict):
            axis.vlines(places, values, [run[key]["p90"] for run in runs], color="#1f2937", linewidth=1)
            axis.set_yscale("log")
        axis.set_xticks(range(len(runs)), [run["load"].split()[0] for run in runs])
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--llama-server", default="llama-server", metavar="PROGRAM")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", default="1,4,8,16")
    parser.add_argument("--shapes", default="chat,document,json")
    parser.add_argument("--requests", type=int, default=6, help="for each two clients")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "imp"), os.environ.get("PYTHONPATH", "")])
    if options.plot is None:
        measure(options)
    found = reports(options.out)
    print(table(found))
    if options.plot is not None:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
