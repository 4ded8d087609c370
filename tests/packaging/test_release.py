"""What a release is made of: the workflows name what exists, and the check finds what is missing or doesn't belong."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def script(path: str) -> Any:
    """A module by its path: the folder `packaging` has the name of a package of PyPI's."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check, debian = script("packaging/release/check.py"), script("packaging/debian/build.py")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = check.own_version()
SDIST = f"imp_server-{VERSION}.tar.gz"
AARCH64 = f"imp_server-{VERSION}-py3-none-manylinux_2_28_aarch64.whl"
X86_64 = f"imp_server-{VERSION}-py3-none-manylinux_2_28_x86_64.whl"


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.stem))
def test_workflows_name_what_exists(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    checked = 0
    for step in steps(workflow):
        told = step.get("run", "")
        for target in re.findall(r"\bmake ([a-z-]+)", told):
            assert target in targets, target
            checked += 1
        for script in re.findall(r"(?:\.ci|packaging)/[\w/.]+", told):
            assert (ROOT / script).exists(), script
            checked += 1
        assert "uses" not in step or re.fullmatch(r"[\w.-]+/[\w.-]+@\S+", step["uses"])
    assert checked, "nothing of ours is run"
    for name, job in workflow["jobs"].items():
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= workflow["jobs"].keys() - {name}
        assert job["timeout-minutes"] <= 90 if "timeout-minutes" in job else not job["steps"][0].get("run")


def test_only_a_tag_publishes() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        if "permissions" in job:
            assert job["if"] == "github.ref_type == 'tag'", name
    assert set(workflow["jobs"]["publish"]["needs"]) == {"try", "debian"}


def elf(machine: int) -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(10)


def made_wheel(path: Path, machine: int, leave_out: str = "") -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        for name in check.OF_A_WHEEL:
            if name != leave_out:
                wheel.writestr(name, "")
        for library in ("engine", "grammar"):
            wheel.writestr(f"imp_server/_native/lib{library}-portable.so", elf(machine))


def made_sdist(path: Path, more: str = "", leave_out: str = "") -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name in (*check.OF_AN_SDIST, *([more] if more else [])):
            if name != leave_out:
                archive.addfile(tarfile.TarInfo(f"imp_server-{VERSION}/{name}"), BytesIO())


@pytest.fixture
def release(tmp_path: Path) -> Path:
    made_wheel(tmp_path / X86_64, 62)
    made_wheel(tmp_path / AARCH64, 183)
    made_sdist(tmp_path / SDIST)
    return tmp_path


def test_a_whole_release_is_one(release: Path) -> None:
    assert check.faults(release, "") == [] == check.faults(release, f"v{VERSION}")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / AARCH64).unlink(), "0 wheels"),
        (lambda folder: (folder / SDIST).unlink(), f"{SDIST} is missing"),
        (lambda folder: (folder / "notes.txt").touch(), "notes.txt doesn't belong there"),
        (lambda folder: made_wheel(folder / AARCH64, 62), "is not for aarch64"),
        (lambda folder: made_wheel(folder / X86_64, 62, check.OF_A_WHEEL[2]), "openai-chat.yaml is missing"),
        (lambda folder: (folder / X86_64).rename(folder / X86_64.replace("manylinux_2_28", "linux")), "glibc"),
        (lambda folder: (folder / X86_64).rename(folder / X86_64.replace("2_28", "2_34")), "glibc"),
        (lambda folder: made_sdist(folder / SDIST, leave_out="docs/index.md"), "docs/index.md is missing"),
        (lambda folder: made_sdist(folder / SDIST, leave_out="tests/conftest.py"), "tests/conftest.py is missing"),
        (lambda folder: made_sdist(folder / SDIST, more="imp/imp_server/_native/libengine.so"), "doesn't belong"),
    ],
)
def test_what_is_wrong_is_told(spoil: Callable[[Path], object], told: str, release: Path) -> None:
    spoil(release)
    assert any(told in fault for fault in check.faults(release, "")), check.faults(release, "")


def test_a_tag_of_another_version(release: Path) -> None:
    assert check.faults(release, "v9.9.9") == [f"the tag is v9.9.9, and the package is {VERSION}"]


@pytest.mark.slow
def test_the_sdist_has_docs_and_tests_and_builds_without_a_compiler(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, env={**os.environ, "CXX": "no-such"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(check.faults_of_sdist(tmp_path / SDIST, VERSION)) == []
    with tarfile.open(tmp_path / SDIST) as archive:
        archive.extractall(tmp_path, filter="data")
    inside = tmp_path / f"imp_server-{VERSION}"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not [name for name in tracked.split() if not (inside / name).exists()], "what git has"
    pythonpath = os.pathsep.join([str(inside / "imp"), str(inside)])
    quick = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/core",
        "tests/test_map.py",
    ]
    ran = subprocess.run(
        quick, cwd=inside, env={**os.environ, "PYTHONPATH": pythonpath}, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stdout.decode()[-2000:]


def test_a_debian_package_takes_wheels_of_ours_alone() -> None:
    assert debian.facts_of(Path(X86_64)) == (VERSION, "x86_64") and debian.facts_of(Path(AARCH64))[1] == "aarch64"
    assert f"Version: {VERSION}\nArchitecture: arm64" in debian.control(VERSION, "aarch64", 9)
    for name in ("other-1.0-py3-none-any.whl", f"imp_server-{VERSION}-py3-none-any.whl", SDIST):
        with pytest.raises(SystemExit):
            debian.facts_of(Path(name))


@pytest.mark.slow
def test_a_debian_package_runs_from_wherever_it_is_unpacked(tmp_path: Path) -> None:
    """Its modules come from the package, its dependencies from here; /usr/bin/python3 may be another one."""
    wheel = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(wheel, check=True, capture_output=True)
    package = debian.build(next(tmp_path.glob("*.whl")), tmp_path, with_deps=False)
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    assert "/usr/bin/imp serve" in (root / "usr/lib/systemd/system/imp.service").read_text()
    for name in debian.COMMANDS:
        launcher = root / "usr/bin" / name
        launcher.write_text(launcher.read_text().replace("/usr/bin/python3", sys.executable))
        done = subprocess.run(
            [str(launcher), "--help"], cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
        )
        assert done.returncode == 0 and "Usage" in done.stdout, done.stderr
    told = subprocess.run([str(root / "usr/bin/imp"), "--version"], capture_output=True, text=True, check=True, env={})
    assert told.stdout == f"imp {VERSION}\n"
