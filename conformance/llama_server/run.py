"""Run llama.cpp's own server tests against imp: `python conformance/llama_server/run.py SDIST [test_basic.py ...]`.

SDIST is the source distribution of llama-cpp-python (a folder or .tar.gz), which holds llama.cpp with its tests. They
are copied into --work, changed by the patch list (patches.py), and start imp through LLAMA_SERVER_BIN_PATH. Models come
from a hub on loopback that has tiny ones (tiny.py, hub.py). Nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import gguf

sys.path.insert(0, str(Path(__file__).parent))
import tiny
from hub import Hub
from patches import ADAPTERS, EDITS, LEFT_OUT, MODELS, Edit

_TESTS = Path("tools/server/tests")
_ROOT = Path(__file__).parents[2]
_LAUNCHER = """#!{python}
import os, sys
os.environ |= {environment!r}
sys.argv = ["imp", "llama-server", *sys.argv[1:]]
from imp_server.cli.main import main
main()
"""


@dataclass
class Counts:
    """Of one file of tests."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> cases."""

    @property
    def n_cases(self) -> int:
        return len(self.passed) + len(self.failed) + len(self.skipped) + sum(map(len, self.left_out.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--work", type=Path, default=Path("build/llama_server_tests"))
    parser.add_argument("-k", dest="words", default="")
    options = parser.parse_args()
    work = options.work.resolve()
    folder = prepare(options.sdist, work)
    hub = Hub(make_models(work))
    try:
        environment = fetch_models(work, hub)
        files = options.files or sorted(path.name for path in (folder / "unit").glob("test_*.py"))
        found = {name: run_file(folder, name, environment, options.words) for name in files}
    finally:
        hub.close()
    (work / "counts.json").write_text(json.dumps({name: vars(counts) for name, counts in found.items()}, indent=1))
    print(table(found))
    return int(any(counts.failed for counts in found.values()))


def prepare(sdist: Path, work: Path) -> Path:
    """Where the changed copy of the tests is. Every edit of the list must find its text."""
    shutil.rmtree(work / "llama.cpp", ignore_errors=True)
    for part in (_TESTS, Path("models/templates")):
        _copy(sdist, part, work / "llama.cpp" / part)
    folder = work / "llama.cpp" / _TESTS
    (folder / "tmp").mkdir(exist_ok=True)
    for edit in EDITS:
        _apply(edit, folder)
    return folder


def _copy(sdist: Path, part: Path, target: Path) -> None:
    if sdist.is_dir():
        shutil.copytree(sdist / "vendor/llama.cpp" / part, target)
        return
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            path = Path(*Path(member.name).parts[1:])
            inside = Path("vendor/llama.cpp") / part
            if member.isfile() and path.is_relative_to(inside):
                out = target / path.relative_to(inside)
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_bytes((archive.extractfile(member) or sys.exit(f"{member.name} can't be read")).read())


def _apply(edit: Edit, folder: Path) -> None:
    path = folder / edit.file
    text = path.read_text(encoding="utf-8")
    if text.count(edit.old) < 1:
        sys.exit(f"patches.py: {edit.file} has no {edit.old!r}: is this another version of the tests?")
    path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def make_models(work: Path) -> Path:
    """The hub's folder: a repository for each that the tests name."""
    folder = work / "hub"
    shutil.rmtree(folder, ignore_errors=True)
    for model in MODELS:
        path = folder / model.repo / model.file
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = gguf.GGMLQuantizationType[model.kind]
        tiny.write(path, seed=model.seed, kind=kind, parts=model.parts)
    for name in ADAPTERS:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tiny.write_adapter(path)
    return folder


def fetch_models(work: Path, hub: Hub) -> dict[str, str]:
    """The environment of the servers, in whose catalogue all models are but those that tests fetch themselves."""
    home = work / "home"
    shutil.rmtree(home, ignore_errors=True)
    environment = {"IMP_HOME": str(home), "HF_ENDPOINT": hub.url}
    (home / "models").mkdir(parents=True)
    for model in MODELS:
        if model.fetched:
            command = [sys.executable, "-m", "imp_server.cli.main", "pull", f"hf:{model.repo}{model.tag}"]
            subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    launcher = work / "llama-server"
    launcher.write_text(_LAUNCHER.format(python=sys.executable, environment=environment))
    launcher.chmod(0o755)
    stubs = work / "stubs"
    stubs.mkdir(exist_ok=True)
    (stubs / "wget.py").write_text(
        "import shutil, pathlib\n\n\ndef download(url, out):\n"
        f"    shutil.copy(next(pathlib.Path({str(work / 'hub')!r}).rglob(url.rpartition('/')[2])), out)\n"
    )
    paths = os.pathsep.join([str(stubs), str(_ROOT / "imp"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "LLAMA_SERVER_BIN_PATH": str(launcher), "PYTHONPATH": paths, "LLAMA_CACHE": str(work)}


def run_file(folder: Path, name: str, environment: dict[str, str], words: str) -> Counts:
    out = folder / "tmp" / f"{name}.xml"
    listed = _pytest(folder, environment, [f"unit/{name}", "--collect-only", "-m", "slow or not slow"])
    cases = [line for line in listed.stdout.splitlines() if "::" in line]
    counts = Counts()
    for case in cases:
        if reason := why_left_out(case):
            counts.left_out.setdefault(reason, []).append(case)
    left_out = {case for found in counts.left_out.values() for case in found}
    wanted = [case for case in cases if case not in left_out]
    if not wanted:
        return counts
    chosen = ["-k", words] if words else []
    # ids may hold anything: what is left out is named, what runs is the file
    (folder / "tmp" / "left_out.txt").write_text("\n".join(left_out))
    run = _pytest(folder, environment, [f"unit/{name}", f"--junitxml={out}", "-p", "leaving_out", *chosen])
    (folder / "tmp" / f"{name}.log").write_text(run.stdout)
    if not out.is_file():
        sys.exit(run.stdout)
    for case in ElementTree.parse(out).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        where = (
            counts.failed if kinds & {"failure", "error"} else counts.skipped if "skipped" in kinds else counts.passed
        )
        where.append(case.get("name", ""))
    out.unlink()
    print(f"{name}: {len(counts.passed)} passed, {len(counts.failed)} failed", *counts.failed, sep="\n  ", flush=True)
    return counts


def _pytest(folder: Path, environment: dict[str, str], more: Sequence[str]) -> subprocess.CompletedProcess[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", "0", "--no-header", *more]
    paths = f"{folder / 'tmp'}{os.pathsep}{environment['PYTHONPATH']}"
    (folder / "tmp" / "leaving_out.py").write_text(_LEAVING_OUT)
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PORT": str(port), "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


_LEAVING_OUT = '''"""Deselects the cases that are named in a file."""
from pathlib import Path

NAMES = set(Path(__file__).with_name("left_out.txt").read_text().splitlines())


def pytest_collection_modifyitems(config, items):
    gone = [item for item in items if item.nodeid in NAMES]
    items[:] = [item for item in items if item.nodeid not in NAMES]
    config.hook.pytest_deselected(items=gone)
'''


def why_left_out(case: str) -> str:
    """ "" = it runs."""
    name = case.removeprefix("unit/")
    return next((reason for pattern, reason in LEFT_OUT if fnmatch(name, pattern)), "")


def table(found: dict[str, Counts]) -> str:
    """For docs/llama-server.md."""
    lines = ["| file | cases | pass | fail | left out |", "|---|---|---|---|---|"]
    for name, counts in found.items():
        reasons = "; ".join(f"{len(cases)} {reason}" for reason, cases in counts.left_out.items())
        lines.append(f"| {name} | {counts.n_cases} | {len(counts.passed)} | {len(counts.failed)} | {reasons} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
