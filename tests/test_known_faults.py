"""docs/known-faults.md names a proof for each kind of fault, and every proof it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from imp_server.api.contract import load
from imp_server.conformance.case import load_cases
from imp_server.resources import data_folder

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "known-faults.md").read_text()
ROWS = re.findall(r"^\| ([DL]\d+) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
CASES = {case.id for case in load_cases()}


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("number", "kind", "proofs"), ROWS, ids=[row[0] for row in ROWS])
def test_every_proof_exists(number: str, kind: str, proofs: str) -> None:
    assert kind.strip()
    for proof in proofs.split(", "):
        file, _, function = proof.partition("::")
        if function:
            assert function in functions(TESTS / file), f"{number}: {proof}"
        else:
            assert proof in CASES, f"{number}: {proof}"


def test_every_test_that_bears_a_number_is_on_the_page() -> None:
    named = set()
    for path in TESTS.rglob("test_*.py"):
        for name in functions(path):
            if match := re.match(r"test_(llamacpp_)?faults?_((?:\d+_)+)", name):
                letter = "L" if match[1] else "D"
                named |= {letter + number for number in match[2].strip("_").split("_") if int(number) < 200}
    assert named <= {number for number, _, _ in ROWS}


def test_no_row_is_there_twice() -> None:
    numbers = [number for number, _, _ in ROWS]
    assert len(numbers) == len(set(numbers)) >= 100


def test_parts_that_are_not_here() -> None:
    paths = {operation.path for operation in load(data_folder("spec")).operations}
    assert not paths & {"/v1/stream", "/v1/streams/lookup", "/models/load", "/models/unload", "/models/sse", "/sleep"}
    families = (TESTS.parent / "imp" / "imp_server" / "models" / "families").glob("*.py")
    assert not [path.stem for path in families if re.search("mamba|rwkv|recurrent|delta", path.stem)]
