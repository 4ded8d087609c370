"""Look at this machine and this installation, and say what stands in the way."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata, util
from math import isfinite
from typing import Literal

import click

from imp_server import __version__
from imp_server.backends import NEEDS, choose, exists
from imp_server.backends.cuda.proof.kept import all_kept
from imp_server.backends.machine import available_bytes, total_bytes
from imp_server.cli import _machine
from imp_server.cli._knob_options import KnobCommand, with_config
from imp_server.cli._leftovers import leftovers
from imp_server.cli._terminal import size_text
from imp_server.config import Config, imp_home
from imp_server.config.load import Loaded
from imp_server.core import ImpError, UserFault
from imp_server.native import MEND, cpu_features, library_path, usable_isas
from imp_server.resources import data_folder, native_folder
from imp_server.weights.catalogue import find, pulled_models

PACKAGES = ("numpy", "msgspec", "tokenizers", "jinja2", "blacksheep", "uvicorn", "huggingface-hub")
OPTIONAL = {"torch": "the reference and cuda backends"}
SHOWN_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")
CPU_LIBRARY = "engine"
"""The library of the cpu backend (kernels/cpu/engine)."""
Verdict = Literal["ok", "note", "bad"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """`bad`: a model can't be served here until it is mended. `note`: worth knowing."""

    topic: str
    text: str
    verdict: Verdict = "ok"


@click.command(cls=KnobCommand)
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@with_config("server", "model", "engine", "cpu", "cuda", "router", "prefix_cache")
def command(loaded: Loaded, as_json: bool) -> int:
    """Look at this machine and this installation. Exit code 1 if something stands in the way of serving."""
    findings: list[DoctorFinding] = []
    for check in CHECKS:
        for finding in check(loaded.config):
            findings.append(finding)
            if not as_json:
                _print(finding)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    return int(any(finding.verdict == "bad" for finding in findings))


def _print(finding: DoctorFinding) -> None:
    mark = {"ok": "", "note": "note: ", "bad": "bad: "}[finding.verdict]
    colour = {"ok": None, "note": "yellow", "bad": "red"}[finding.verdict]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    text = click.wrap_text(mark + finding.text, width, f"{finding.topic:<10}", " " * 10)
    click.echo(click.style(text, fg=colour) if colour else text)


def versions(_: Config) -> list[DoctorFinding]:
    python = platform.python_version()
    found = [DoctorFinding("imp", f"{__version__}, Python {python} at {sys.executable}")]
    names = [f"{name} {_version(name)}" for name in PACKAGES if _version(name)]
    missing = [name for name in PACKAGES if not _version(name)]
    found.append(DoctorFinding("packages", ", ".join(names)))
    if missing:
        found.append(DoctorFinding("packages", f"{', '.join(missing)} missing; reinstall imp", "bad"))
    extras = [f"{name} {_version(name)}" for name in OPTIONAL if _version(name)]
    absent = [f"no {name} (only needed for {why})" for name, why in OPTIONAL.items() if not _version(name)]
    found.append(DoctorFinding("extras", ", ".join(extras + absent)))
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def processor(_: Config) -> list[DoctorFinding]:
    features = [name for name in SHOWN_FEATURES if name in cpu_features()]
    cores = _machine.cores()
    quota = f", quota {cores.quota:g}" if isfinite(cores.quota) else ""
    return [
        DoctorFinding("cpu", f"{_machine.cpu_name()}; {' '.join(features) or 'no vector features known'}"),
        DoctorFinding("cores", f"{cores.logical} logical, {cores.usable} allowed{quota}: {cores.threads} threads"),
    ]


def memory(_: Config) -> list[DoctorFinding]:
    total, available = total_bytes(), available_bytes()
    threads = _machine.cores().threads
    found = [DoctorFinding("memory", f"{size_text(available)} of {size_text(total)} free" if total else "unknown")]
    if available < _machine.BANDWIDTH_BUFFER_BYTES * 2:
        return [*found, DoctorFinding("bandwidth", "not measured: too little memory is free", "note")]
    speed = _machine.read_bandwidth(threads)
    text = f"{speed / 1e9:.1f} GB/s read by {threads} threads just now; it bounds tokens/s (GB/s : GB of weights)"
    return [*found, DoctorFinding("bandwidth", text)]


def native(config: Config) -> list[DoctorFinding]:
    """The libraries that lie here, and the variant of each that this CPU loads."""
    names = sorted({path.name[3:].rpartition("-")[0] for path in native_folder().glob("lib*-*.so")})
    torch = util.find_spec("torch") is not None
    if CPU_LIBRARY not in names:
        if torch:
            return [
                DoctorFinding(
                    "native", f"the cpu backend isn't built; the slow reference backend is used; {MEND}", "note"
                )
            ]
        return [
            DoctorFinding(
                "native", f"the cpu backend isn't built and there is no torch: no model can run; {MEND}", "bad"
            )
        ]
    found = []
    for name in names:
        try:
            path = library_path(name, config.cpu.isa or None)
        except UserFault as fault:
            return [DoctorFinding("native", fault.message, "bad")]
        found.append(path.name if path else f"{name}: no variant for this CPU")
    isas = ", ".join(usable_isas())
    return [DoctorFinding("native", f"{', '.join(found)} (this CPU can run {isas})")]


def backend(config: Config) -> list[DoctorFinding]:
    chosen = choose(config.engine.backend)
    asked = "" if chosen == config.engine.backend else f" (--backend {config.engine.backend})"
    if chosen == "reference" and util.find_spec("torch") is None:
        return []  # `native` has said it
    slow = "; it is slow: see native" if chosen == "reference" else ""
    return [DoctorFinding("backend", f"{chosen}{asked}{slow}")]


def gpu(_: Config) -> list[DoctorFinding]:
    cards = _machine.gpus()
    if not cards:
        return [DoctorFinding("gpu", "none found: the cpu backend is used")]
    if not exists("cuda"):
        return [DoctorFinding("gpu", f"{'; '.join(cards)}; this imp has no GPU backend: the cpu backend is used")]
    ready = util.find_spec("torch") is not None
    advice = "" if ready else f"; to use it: pip install {NEEDS['cuda']}"
    how = "used with --backend cuda, which is untried on real cards"
    return [DoctorFinding("gpu", f"{'; '.join(cards)}; {how}{advice}", "ok" if ready else "note"), *kernels()]


def kernels() -> list[DoctorFinding]:
    """What is known of our CUDA kernels on the cards of this machine, model by model."""
    return [
        DoctorFinding("kernels", f"{kept.model} on {kept.card}: {kept.verdict.text()}",
                      "note" if kept.verdict.condemned else "ok")
        for kept in all_kept()
    ]  # fmt: skip


def disk(config: Config) -> list[DoctorFinding]:
    home = imp_home()
    folder = home
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        return [DoctorFinding("disk", f"{home} can't be written; set IMP_HOME to a folder that you can write", "bad")]
    models = pulled_models()
    size = sum(pulled.manifest.size for pulled in models)
    free = shutil.disk_usage(folder).free
    count = f"{len(models)} model{'s' if len(models) != 1 else ''}"
    text = f"{home}: {count}, {size_text(size)}; {size_text(free)} free"
    found = [DoctorFinding("disk", text, "ok" if free > 1e9 else "note")]
    if unused := leftovers(config):
        n_bytes = sum(each.n_bytes for each in unused)
        what = f"{len(unused)} thing{'s' if len(unused) != 1 else ''} that no model uses"
        found.append(DoctorFinding("disk", f"{size_text(n_bytes)} in {what}; `imp gc` lists and frees them", "note"))
    return found


def model(config: Config) -> list[DoctorFinding]:
    try:
        wanted = find(config.model.path, config.router.models_dir)
    except ImpError as error:
        return [DoctorFinding("model", error.message, "bad")]
    if wanted is None:
        return [DoctorFinding("model", "none: the server starts without one")]
    if wanted.local is None:
        return [
            DoctorFinding("model", f"{wanted.name} isn't here yet; `imp serve` or `imp pull {wanted.name}` fetches it")
        ]
    return [DoctorFinding("model", f"{wanted.name}: {wanted.local}")]


def port(config: Config) -> list[DoctorFinding]:
    findings = []
    for host in config.server.host:
        if host.startswith(("unix:", "/")):
            continue
        where = f"{host}:{config.server.port}"
        if why := _machine.port_is_free(host, config.server.port):
            findings.append(DoctorFinding("port", f"{where}: {why.lower()}; choose another with --port", "note"))
        else:
            findings.append(DoctorFinding("port", f"{where} is free"))
    return findings


def files(_: Config) -> list[DoctorFinding]:
    missing = []
    for name in ("spec", "kernels", "conformance"):
        try:
            data_folder(name)
        except UserFault as fault:
            missing.append(fault.message)
    return [DoctorFinding("files", text, "bad") for text in missing]


CHECKS: tuple[Callable[[Config], list[DoctorFinding]], ...] = (
    versions,
    files,
    processor,
    memory,
    native,
    backend,
    gpu,
    disk,
    model,
    port,
)
