"""analysis/mutants.py: what fails without a fault notices nothing, what can't be run judges nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.mutants import Judge, Mutant, nearest_tests, sample

MODULE = Path("imp/imp_server/sums.py")
FINE = "def total(a, b):\n    return a + b\n"
TESTS = """
import importlib.util, pathlib
spec = importlib.util.spec_from_file_location("sums", pathlib.Path(__file__).parents[1] / "imp/imp_server/sums.py")
sums = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sums)
"""


def tree_of(folder: Path, tests: str) -> Path:
    (folder / "tests").mkdir()
    (folder / MODULE).parent.mkdir(parents=True)
    (folder / MODULE).write_text(FINE)
    (folder / "tests" / "test_sums.py").write_text(TESTS + tests)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "verdict"),
    [
        ("def test_it():\n    assert sums.total(2, 3) == 5\n", "noticed"),
        ("def test_it():\n    assert sums.total(2, 0) == 2\n", "SURVIVED"),
        ("def test_it():\n    assert False\n\ndef test_other():\n    assert sums.total(2, 0) == 2\n", "SURVIVED"),
        ("nothing runs here", "UNJUDGED"),
    ],
)
def test_only_what_passes_on_the_original_can_notice(tmp_path: Path, tests: str, verdict: str) -> None:
    judge, tree = Judge(), tree_of(tmp_path, tests)
    assert judge.verdict(Mutant(MODULE, 2, "Add -> Sub", FINE.replace("+", "-")), tree) == verdict
    assert (tree / MODULE).read_text() == FINE


def test_the_nearest_tests_are_those_that_import_the_module_and_its_folder() -> None:
    first, folder = nearest_tests(Path("imp/imp_server/schedule/tree.py"))
    assert "tests/schedule/test_cache.py" in first and folder == ("tests/schedule",)
    assert not any("vocab" in file for file in first)
    assert "tests/test_logs.py" in nearest_tests(Path("imp/imp_server/logs.py"))[0]


def test_a_longer_sample_begins_with_the_shorter_one() -> None:
    assert sample(5, 1, "decode/")[:2] == sample(2, 1, "decode/")
