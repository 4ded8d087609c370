"""A short run of every target: whole inputs, what failed before, and some changed by chance, the same each time."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest

from tests.fuzz.driver import changed, fuzz
from tests.fuzz.targets import TARGETS, Target

N = {"gguf": 30, "safetensors": 40, "tokenizer": 30, "template": 30, "schema": 40, "call": 15, "body": 40, "offset": 25}


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_refusals(name: str) -> None:
    n_tried, data, why = fuzz(TARGETS[name], random.Random(name), n=N[name])
    assert not why, (data, why)
    assert n_tried == N[name]


def test_faults_are_found() -> None:
    def breaks(data: bytes) -> None:
        if b"\x00" in data:
            raise ZeroDivisionError

    target = Target("planted", lambda: nullcontext(breaks), lambda: [b"whole input"])
    n_tried, data, why = fuzz(target, random.Random(1), n=200)
    assert b"\x00" in data and "ZeroDivisionError" in why and n_tried < 200


def test_changes_differ_and_repeat() -> None:
    made = [changed(b"a whole input", [b"other"], random.Random(i)) for i in range(50)]
    assert len(set(made)) > 40
    assert made == [changed(b"a whole input", [b"other"], random.Random(i)) for i in range(50)]
