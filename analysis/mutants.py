"""How many small faults the tests notice: a seeded sample of mutants, each run against the tests nearest to it.

    python analysis/mutants.py --count 60 --seed 1 [--only grammar/] [--jobs 2]

A mutant is one changed place of one file: a comparison turned, a constant moved by one, a condition negated, `and` for
`or`, a statement's value dropped. The package and its tests are copied, so the checkout stays as it is. What fails is
tried on the original, too: what fails there notices nothing. Survivors are listed with file and line; somebody has to
look which of them mean the same as the original.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Lock

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("imp/imp_server")
CARRIED = ("imp", "tests", "spec", "kernels", "conformance", "analysis", "docs", "pyproject.toml", "README.md")
CARRIED_TOO = ("build_native.py", "Makefile", "LICENSE", ".github")
NOTHING_RAN = 5
"""pytest's exit status where no test was chosen."""
LIMIT_S = 1200
"""A mutant that takes longer hangs, which is noticed; tests that take longer on the original judge nothing."""

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    path: Path
    """Relative to the checkout."""
    line: int
    change: str
    text: str
    """The whole file, changed."""


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each way to change this node alone: (in words, the node instead)."""
    new = deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in TURNED:
        was = type(new.ops[0])
        new.ops[0] = TURNED[was]()
        yield f"{was.__name__} -> {TURNED[was].__name__}", new
    elif isinstance(new, ast.BinOp) and type(new.op) in SWAPPED:
        was_op = type(new.op)
        new.op = SWAPPED[was_op]()
        yield f"{was_op.__name__} -> {SWAPPED[was_op].__name__}", new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield "and <-> or", new
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
        yield f"{not new.value} -> {new.value}", new
    elif isinstance(new, ast.Constant) and isinstance(new.value, int):
        new.value += 1
        yield f"{new.value - 1} -> {new.value}", new
    elif isinstance(new, ast.If | ast.While | ast.IfExp):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield "condition negated", new
    elif isinstance(new, ast.Return) and new.value is not None:
        new.value = ast.Constant(None)
        yield "returns None", new
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call):
        yield "call left out", ast.Pass()


class Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def places(tree: ast.Module) -> list[ast.AST]:
    """Nodes inside functions: a changed default or table at module level is another kind of fault."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(n): n for function in functions for statement in function.body for n in ast.walk(statement)}
    return [node for node in inside.values() if hasattr(node, "lineno") and any(True for _ in changes(node))]


def sample(count: int, seed: int, only: str) -> list[Mutant]:
    """Files are drawn by how many places they have, so every place is as likely as any other."""
    chance = random.Random(seed)
    files = [p for p in sorted((ROOT / PACKAGE).rglob("*.py")) if only in str(p.relative_to(ROOT / PACKAGE))]
    trees = {path: ast.parse(path.read_text()) for path in files}
    all_places = [(path, index) for path, tree in trees.items() for index in range(len(places(tree)))]
    found = []
    for path, index in chance.sample(all_places, min(count, len(all_places))):
        tree = deepcopy(trees[path])
        node = places(tree)[index]
        change, new = random.Random(f"{seed} {index}").choice(list(changes(node)))
        line = getattr(node, "lineno", 0)
        text = ast.unparse(ast.fix_missing_locations(Exchange(node, new).visit(tree)))
        found.append(Mutant(path.relative_to(ROOT), line, change, text))
    return found


def nearest_tests(path: Path, root: Path = ROOT) -> list[tuple[str, ...]]:
    """What to run in turn: the test files named after the module or importing it, then the folder that mirrors its
    package."""
    below = path.relative_to(PACKAGE)
    module = ".".join(("imp_server", *below.with_suffix("").parts)).removesuffix(".__init__")
    imports = re.compile(rf"\b{re.escape(module)}\b|\bfrom {module.rpartition('.')[0]} import .*\b{path.stem}\b")
    named = [
        str(test.relative_to(root))
        for test in sorted((root / "tests").rglob("test_*.py"))
        if test.stem == f"test_{path.stem}" or imports.search(test.read_text())
    ]
    folder = Path("tests", *below.parts[:-1])
    while not (root / folder).is_dir():
        folder = folder.parent
    return [tuple(named)] * bool(named) + [(str(folder),)] * (folder != Path("tests"))


class Judge:
    """Owner of what is known of the tests without any fault: those that fail anyway notice nothing."""

    def __init__(self) -> None:
        self.failing: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        """By what is run, what of it failed on the original."""
        self.broken: set[tuple[str, ...]] = set()
        """What can't be run at all."""
        self._locks: defaultdict[tuple[str, ...], Lock] = defaultdict(Lock)

    def verdict(self, mutant: Mutant, tree: Path) -> str:
        """noticed | SURVIVED | UNJUDGED: no tests of its own that run on the original."""
        judged = False
        for tests in nearest_tests(mutant.path, tree):
            with self._locks[tests]:
                found = self._try(mutant, tree, tests)
            if found == "noticed":
                return found
            judged = judged or found == "SURVIVED"
        return "SURVIVED" if judged else "UNJUDGED"

    def _try(self, mutant: Mutant, tree: Path, tests: tuple[str, ...]) -> str:
        """With the fault first: a test that fails then is tried on the original, and left out if it fails there."""
        while tests not in self.broken:
            left_out = [f"--deselect={name}" for name in self.failing[tests]]
            with changed(mutant, tree):
                code, told = run_tests(tree, ["-x", "-rfE", *left_out, *tests])
            if code in (0, NOTHING_RAN):
                return "SURVIVED" if code == 0 else "UNJUDGED"
            names = re.findall(r"^(?:FAILED|ERROR) (\S+?::\S+)", told, re.MULTILINE)
            code, told = run_tests(tree, ["-rfE", *(names or [*left_out, *tests])])
            if code == 0:
                return "noticed"
            failing = re.findall(r"^(?:FAILED|ERROR) (\S+?::\S+)", told, re.MULTILINE)
            if not failing:
                self.broken.add(tests)
            self.failing[tests] += failing
        return "UNJUDGED"


@contextmanager
def changed(mutant: Mutant, tree: Path) -> Iterator[None]:
    target = tree / mutant.path
    original = target.read_text()
    target.write_text(mutant.text)
    try:
        yield
    finally:
        target.write_text(original)


def run_tests(tree: Path, arguments: list[str]) -> tuple[int, str]:
    """(exit status, output) of pytest; 124 where it took too long."""
    path = os.pathsep.join([str(tree / "imp"), str(tree)])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", *arguments]
    try:
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, done.stdout


def copied(into: Path) -> Path:
    for name in (*CARRIED, *CARRIED_TOO):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
        elif source.exists():
            shutil.copy(source, into / name)
    return into


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files whose path holds this")
    parser.add_argument("--skip", type=int, default=0, help="so many of the sample have been looked at")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    first = asked.skip
    mutants = sample(first + asked.count, asked.seed, asked.only)[first:]
    found: defaultdict[str, list[str]] = defaultdict(list)
    judge = Judge()
    with tempfile.TemporaryDirectory() as scratch:
        trees: Queue[Path] = Queue()
        for job in range(asked.jobs):
            trees.put(copied(Path(scratch) / str(job)))

        def run(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                return judge.verdict(mutant, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(asked.jobs) as pool:
            for mutant, verdict in zip(mutants, pool.map(run, mutants), strict=True):
                place = f"{mutant.path}:{mutant.line}: {mutant.change}"
                print(f"{verdict:8} {place}", flush=True)
                found[verdict].append(place)
    report(found, judge)
    return 0


def report(found: dict[str, list[str]], judge: Judge) -> None:
    n_judged = len(found["noticed"]) + len(found["SURVIVED"])
    print(f"{len(found['noticed'])} of {n_judged} noticed; survivors:", *found["SURVIVED"], sep="\n  ")
    for title, lines in (
        ("without tests that run on the original:", found["UNJUDGED"]),
        (
            "failed on the original, and counted for nothing:",
            [one for names in judge.failing.values() for one in names],
        ),
        ("couldn't be run on the original:", [" ".join(tests) for tests in judge.broken]),
    ):
        if lines:
            print(title, *lines, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
