"""The built wheel, installed in a clean environment and run from an empty folder, has all it needs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from imp_server import __version__

# The kernels are compiled here if `make native` hasn't been run since they changed.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that the workers of one run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "wheel"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def wheel(repo_root: Path, shared: Path) -> Path:
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(shared.glob("imp_server-*.whl")):
            command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(shared)]
            done = subprocess.run([*command, str(repo_root)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    (built,) = shared.glob("imp_server-*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; the packages it depends on are lent by a path line, not installed again."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder


def imp(clean: Path, empty: Path, *arguments: str, program: str = "imp") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["IMP_HOME"] = str(empty / "home")
    command = [str(clean / "bin" / program), *arguments]
    return subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_carries_data_and_kernels(wheel: Path, repo_root: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("spec", "kernels", "conformance"):
        here = [p for p in (repo_root / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        carried = {n for n in names if n.startswith(f"imp_server/_data/{folder}/")}
        assert here, folder
        assert {f"imp_server/_data/{p.relative_to(repo_root)}" for p in here} <= carried
    built = list((repo_root / "imp/imp_server/_native").glob("*.so"))
    assert built, "no native library was built: is there a C++ compiler?"
    assert {f"imp_server/_native/{path.name}" for path in built} <= set(names)
    page = {path.name for path in (repo_root / "imp/imp_server/ui/static").iterdir()}
    assert {f"imp_server/ui/static/{name}" for name in page} <= set(names)
    assert not [n for n in names if n.startswith(("tests/", "imp/", "docs/"))]


@pytest.mark.parametrize("program", ["imp", "imp-server"])
def test_help(clean: Path, tmp_path: Path, program: str) -> None:
    done = imp(clean, tmp_path, "--help", program=program)
    assert done.returncode == 0 and "Usage: imp" in done.stdout, done.stderr
    assert imp(clean, tmp_path, "--version").stdout == f"imp {__version__}\n"


def test_it_is_the_installed_package_that_runs(clean: Path, tmp_path: Path) -> None:
    code = "import imp_server; print(imp_server.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = str(clean / "bin" / "python")
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(clean))


def test_doctor_finds_everything(clean: Path, tmp_path: Path) -> None:
    done = imp(clean, tmp_path, "doctor", "--json", "--port", "0")
    findings = json.loads(done.stdout)
    assert done.returncode == 0, [f for f in findings if f["verdict"] == "bad"]
    native = next(f["text"] for f in findings if f["topic"] == "native")
    assert ".so" in native


def test_show_and_config(clean: Path, tmp_path: Path, smollm2_path: Path) -> None:
    done = imp(clean, tmp_path, "show", str(smollm2_path))
    assert done.returncode == 0 and "30 layers of 576" in done.stdout, done.stderr
    assert "port = 8080" in imp(clean, tmp_path, "config", "show").stdout
