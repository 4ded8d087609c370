"""Schemas in the styles of real ones: exactly what `jsonschema` calls valid is accepted, and nothing is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from imp_server.core import GrammarRefused
from imp_server.grammar.check import check_schema
from imp_server.grammar.masks.distance import NEVER
from jsonschema.validators import Draft202012Validator, extend, validator_for

from tests.grammar.judging import byte_space, reads
from tests.grammar.real_styles import Writer
from tests.grammar.store import changed, sampled
from tests.grammar.test_store import TOKENS, Faults, walked

FORMATS = Draft202012Validator.FORMAT_CHECKER


def judge_of(schema: Any) -> Any:
    """With formats, which are assertions here, and with integers in digits."""
    known = validator_for(schema, default=Draft202012Validator)
    digits = known.TYPE_CHECKER.redefine("integer", lambda _, v: isinstance(v, int) and not isinstance(v, bool))
    return extend(known, type_checker=digits)(schema, format_checker=FORMATS)


def faults_of(seed: int) -> tuple[list[str], int, int]:
    """(what went wrong, values judged valid, values judged invalid)."""
    schema, rng = Writer(seed).schema(), random.Random(seed)
    jsonschema.validators.validator_for(schema).check_schema(schema)
    judge = judge_of(schema)
    values = [sampled(schema, schema, rng) for _ in range(14)]
    values = [changed(v, rng) if rng.random() < 0.4 else v for v in values]
    truths = [bool(judge.is_valid(v)) for v in values]
    try:
        plan = check_schema(schema)
    except GrammarRefused as refusal:
        found = [f"refused: {refusal.message}"] if any(truths) else []
        return found, sum(truths), len(truths) - sum(truths)
    m = byte_space().matcher(plan)
    found = [
        f"{'false reject' if truth else 'false accept'}: {value!r:.200}"
        for value, truth in zip(values, truths, strict=True)
        if reads(m, json.dumps(value)) != truth
    ]
    tokens = TOKENS.matcher(plan)
    if tokens.n_tokens_out(tokens.start) >= NEVER:
        # its shortest text is tens of thousands of characters long: nobody walks there
        return found, sum(truths), len(truths) - sum(truths)
    fault = walked(json.dumps(schema), tokens, judge, rng, Faults())
    return [*found, *([fault] if fault else [])], sum(truths), len(truths) - sum(truths)


def judged(seeds: range) -> tuple[dict[int, list[str]], int, int]:
    results = {seed: faults_of(seed) for seed in seeds}
    return (
        {seed: found for seed, (found, _, _) in results.items() if found},
        sum(valid for _, valid, _ in results.values()),
        sum(invalid for _, _, invalid in results.values()),
    )


def test_a_few() -> None:
    faults, n_valid, n_invalid = judged(range(60))
    assert not faults
    assert n_valid > 100 and n_invalid > 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many() -> None:
    faults, n_valid, n_invalid = judged(range(60, 1500))
    assert not faults
    assert n_valid > 3000 and n_invalid > 3000
