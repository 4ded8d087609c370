"""The conformance kit and the degeneration suite over servers and proxies, each started for the time of its run.

    python -m analysis.scorecards MODEL.gguf OUT imp llama-server litellm ... [--program NAME=COMMAND ...]

Names: `imp`; `llama-server`, `llama-cpp-python` (the same file behind its own server); `nginx`, `litellm`,
`vllm-router` (imp behind it). `--program nginx=/usr/sbin/nginx` says where a program is, if not on the path; for
`llama-cpp-python` it is a Python that has it. OUT gets each server's reports as JSON and what it said, and at the end
the tables of all reports in it, as docs/conformance.md has them, are printed; with no names that alone is done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from analysis.servers import IMP, KEY, NAME, free_port, started

HERE = Path(__file__).resolve().parents[1]
BASELINE = HERE / "conformance" / "golden" / "degeneration-smollm2.json"
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{behind};
      proxy_http_version 1.1;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_buffering off;
      proxy_read_timeout 600s;
      client_max_body_size 100m;
    }}
  }}
}}
"""
LITELLM = """
model_list:
  - model_name: {name}
    litellm_params: {{model: openai/{name}, api_base: "http://127.0.0.1:{behind}/v1", api_key: {key}}}
general_settings: {{master_key: {key}}}
router_settings: {{disable_cooldowns: true, num_retries: 0}}
"""


class Place(NamedTuple):
    """What a command is made of."""

    program: list[str]
    model: Path
    folder: Path
    port: int
    behind: int
    """The port of imp, for what stands in front of it."""


def imp(at: Place) -> list[str]:
    return [*IMP, "serve", "--model", str(at.model), "--alias", NAME, "--port", str(at.port), "--api-key", KEY]


def llama_server(at: Place) -> list[str]:
    options = ["-m", str(at.model), "--alias", NAME, "--port", str(at.port), "--api-key", KEY, "--jinja", "--metrics"]
    return [*at.program, *options, "-t", "1", "-n", "512"]  # without a limit an answer may run to the context's end


def llama_cpp_python(at: Place) -> list[str]:
    options = ["--model", str(at.model), "--model_alias", NAME, "--port", str(at.port), "--api_key", KEY]
    return [*at.program, "-m", "llama_cpp.server", *options, "--n_ctx", "8192"]


def nginx(at: Place) -> list[str]:
    config = at.folder / "nginx.conf"
    config.write_text(NGINX.format(folder=at.folder, port=at.port, behind=at.behind))
    return [*at.program, "-c", str(config)]


def litellm(at: Place) -> list[str]:
    config = at.folder / "litellm.yaml"
    config.write_text(LITELLM.format(name=NAME, behind=at.behind, key=KEY))
    return [*at.program, "--config", str(config), "--host", "127.0.0.1", "--port", str(at.port)]


def vllm_router(at: Place) -> list[str]:
    metrics = ["--prometheus-port", str(free_port()), "--prometheus-host", "127.0.0.1"]
    worker = ["--worker-urls", f"http://127.0.0.1:{at.behind}", "--api-key", KEY]
    return [*at.program, "--host", "127.0.0.1", "--port", str(at.port), *worker, *metrics]


class Kind(NamedTuple):
    title: str
    command: Callable[[Place], list[str]]
    program: str
    is_in_front: bool


KINDS = {
    "imp": Kind("imp", imp, "", False),
    "llama-server": Kind("llama-server", llama_server, "llama-server", False),
    "llama-cpp-python": Kind("llama-cpp-python", llama_cpp_python, "python3", False),
    "nginx": Kind("imp behind nginx", nginx, "nginx", True),
    "litellm": Kind("imp behind litellm", litellm, "litellm", True),
    "vllm-router": Kind("imp behind vllm-router", vllm_router, "vllm-router", True),
}


def judged(port: int, out: Path, name: str) -> None:
    """Both suites on what listens at `port`; their exit codes don't matter here."""
    url = ["--url", f"http://127.0.0.1:{port}", "--key", KEY, "--model", NAME]
    for suite, options in (("conformance", ["--timeout", "90"]), ("degen", ["--quick", "--baseline", str(BASELINE)])):
        told = subprocess.run(
            [*IMP, suite, *url, *options, "--json", str(out / f"{name}.{suite}.json")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        (out / f"{name}.{suite}.txt").write_text(told.stdout)


def run(name: str, model: Path, out: Path, programs: dict[str, str]) -> None:
    kind, (behind, port) = KINDS[name], (free_port(), free_port())
    folder = out / f"{name}.files"
    folder.mkdir(exist_ok=True)
    at = Place(shlex.split(programs.get(name, kind.program)), model, folder, port, behind)
    with contextlib.ExitStack() as stack:
        if kind.is_in_front:
            stack.enter_context(started(imp(at._replace(port=behind)), out / f"{name}.imp.log", behind))
        stack.enter_context(started(kind.command(at), out / f"{name}.log", port))
        judged(port, out, name)


def conformance_table(reports: dict[str, dict[str, Any]]) -> str:
    """A column for each server: MUST and SHOULD, passed of judged, and how many weren't claimed."""
    dialects = sorted({row["dialect"] for report in reports.values() for row in report["summary"]})
    lines = [
        "| dialect | " + " | ".join(KINDS[name].title for name in reports) + " |",
        "| --- " * (len(reports) + 1) + "|",
    ]
    for dialect in dialects:
        cells = []
        for report in reports.values():
            row = next((row for row in report["summary"] if row["dialect"] == dialect), None)
            cells.append(cell(row) if row else "-")
        lines.append(f"| {dialect} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(row: dict[str, Any]) -> str:
    shares = [f"{row[level]['passed']}/{row[level]['judged']}" for level in ("MUST", "SHOULD") if row[level]["judged"]]
    return " + ".join(shares) + (f", {row['not claimed']} n.c." if row["not claimed"] else "") if shares else "-"


def degen_table(reports: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| server | pass | weak model | degenerated or failed | skipped | which |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, report in reports.items():
        counts = Counter(row["verdict"] for row in report["checks"])
        wrong = [row["check"] for row in report["checks"] if row["verdict"] in ("fail", "degenerated")]
        weak = sum(n for verdict, n in counts.items() if verdict not in ("pass", "fail", "degenerated", "skip"))
        shown = (KINDS[name].title, counts["pass"], weak, len(wrong), counts["skip"], ", ".join(wrong) or "-")
        lines.append("| " + " | ".join(map(str, shown)) + " |")
    return "\n".join(lines)


def reports_of(out: Path, suite: str) -> dict[str, dict[str, Any]]:
    paths = {name: out / f"{name}.{suite}.json" for name in KINDS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--program", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "imp"), os.environ.get("PYTHONPATH", "")])
    for name in options.names:
        run(name, options.model.resolve(), options.out.resolve(), dict(each.split("=", 1) for each in options.program))
        print(f"{name}: done", file=sys.stderr)
    print(conformance_table(reports_of(options.out, "conformance")) + "\n")
    print(degen_table(reports_of(options.out, "degen")))


if __name__ == "__main__":
    main()
