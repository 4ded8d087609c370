"""The prepared check of a card: imported where little is installed, and run as a whole on the emulated card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis import device_table, gpu_check
from tests.kernels_cuda.emulated import Emulator, compiler

ROOT = Path(__file__).resolve().parents[2]
IMPORT_WITH_LITTLE = """
import sys
from importlib.abc import MetaPathFinder

KNOWN = {"numpy", "torch", "msgspec", "cupy", "imp_server", "analysis"}
# What torch itself imports, or tries to.
KNOWN |= {"typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec", "triton"}
KNOWN |= {"optree", "torchgen", "functorch", "yaml", "packaging", "_distutils_hack", "setuptools", "pkg_resources"}


class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in KNOWN and first not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"there is no {name} here", name=name)
        return None


sys.meta_path.insert(0, Refuse())
import analysis.gpu_check
import analysis.gpu_served
print(sorted(name for name in sys.modules if name.partition(".")[0] == "tests"))
"""


@pytest.mark.slow
def test_it_is_imported_with_torch_numpy_and_msgspec_alone() -> None:
    """On whatever Python runs the tests; it says nothing that only a newer one than 3.11 understands."""
    path = [str(ROOT), str(ROOT / "imp"), *(p for p in sys.path if "site-packages" in p)]
    program = f"import sys; sys.path[:0] = {path!r}\n" + IMPORT_WITH_LITTLE
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", "tests aren't carried along"


needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@needs_compiler
def test_the_table_of_device_functions_is_what_the_emulation_makes() -> None:
    table = device_table.load()
    made = device_table.results(Emulator(order="lowest"), torch.device("cpu"))
    assert set(table) == set(made)
    assert all(np.array_equal(table[key], made[key], equal_nan=made[key].dtype.kind == "f") for key in table)
    assert device_table.differences(table, made) == []
    made["bits/shl"] = made["bits/shl"] ^ 1
    made["approximate/exp2"] = made["approximate/exp2"] * (1 + 2.0**-15)
    found = device_table.differences(table, made)
    assert [line.partition(":")[0] for line in found] == [
        "approximate/exp2",
        "bits/shl",
    ] and "32 of 32, lane 0" in found[1]


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_of_it_runs_on_the_emulated_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMP_HOME", str(tmp_path))
    out = tmp_path / "report.json"
    card = "tests.kernels_cuda.emulated_card:card"
    assert gpu_check.main(["--tiny", "--card", card, "--out", str(out), "--minutes", "20"]) == 0
    report = json.loads(out.read_text())
    assert set(report) == {*gpu_check.SECTIONS, "seconds"}
    assert report["device functions"]["differ"] == [] and report["device functions"]["outputs"] > 30
    assert report["golden"]["kernels none"] == report["golden"]["kernels all"] == "the same"
    (verdict,) = report["kernels"].values()
    assert "kernels: 1" in verdict and "not " not in verdict
    assert all(error < 0.05 for error in report["parity"].values())
    (row,) = report["one row"].values()
    assert row["tokens_per_s"] > 0 and row["goal"] == 1300
    assert report["constrained"]["constrained_share"] > 0 and "left out" in report["served"]


def test_the_tree_can_be_carried_to_a_card() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    assert sum(path.stat().st_size for path in paths if path.is_file()) < 64 << 20


def test_without_a_card_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert gpu_check.main([]) == 2 and "no GPU" in capsys.readouterr().out
