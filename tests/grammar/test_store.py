"""Real schemas: enforced exactly or refused, never anything invalid let through.

Judged by `jsonschema`. A valid value that is rejected is no fault where `format`, an annotation there, forbids it, nor
where a keyword does that is younger than the draft that the schema declares: here it counts, as its author meant it to.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from imp_server.core import GrammarRefused
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher
from jsonschema.validators import validator_for

from tests.grammar.judging import byte_space, reads
from tests.grammar.store import Real, changed, is_held_back, sampled, schemas
from tests.grammar.test_masks import VOCABULARY, allowed
from tests.grammar.test_random_schemas import shuffled

N_VALUES, N_WALKS, N_TOKENS = 12, 2, 40
TOKENS = GrammarSpace(VOCABULARY)


CLASSES = re.compile(r"\\\\[wdsbWDSB]")
"""Shorthands that mean other characters beyond ASCII in ECMA 262, whose patterns schemas speak, than in Python."""


class Faults(Counter[str]):
    """How often each outcome was met: right, refused (remote: for a document elsewhere), or the kind of a fault.

    `shown` says where.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []


def judge(real: Real, faults: Faults) -> None:
    rng = random.Random(real.name)
    try:
        plan = check_schema(real.schema)
    except GrammarRefused as refusal:
        faults["remote" if "leads outside" in refusal.message else "refused"] += 1
        faults.shown.append(f"{real.name}: refused: {refusal.pointer}: {refusal.message[:150]}")
        return
    validator = validator_for(real.schema, default=jsonschema.Draft202012Validator)(real.schema)
    text = json.dumps(real.schema)
    found = {fault for fault in verdicts(real, byte_space().matcher(plan), validator, rng, faults) if fault}
    found |= {fault for _ in range(N_WALKS) if (fault := walked(text, TOKENS.matcher(plan), validator, rng, faults))}
    faults["right" if not found else "wrong"] += 1
    faults.shown += [f"{real.name}: {fault}" for fault in sorted(found)]


def verdicts(real: Real, m: Matcher, validator: Any, rng: random.Random, faults: Faults) -> list[str]:
    found = []
    text = json.dumps(real.schema)
    has_format = '"format"' in text
    has_classes = CLASSES.search(text)
    for _ in range(N_VALUES):
        try:
            value = sampled(real.schema, real.schema, rng)
        except (KeyError, IndexError, ValueError, TypeError):
            continue
        value = changed(value, rng) if rng.random() < 0.4 else value
        valid = verdict(validator, value)
        if valid is None or (has_classes and not str(value).isascii()):
            continue
        accepted = reads(m, json.dumps(shuffled(value, rng), indent=rng.choice([None, 2])))
        faults["valid" if valid else "invalid"] += 1
        if accepted and not valid:
            faults["false accept"] += 1
            found.append(f"false accept {value!r:.200}")
        elif valid and not accepted and has_format:
            continue
        elif valid and not accepted and verdict(jsonschema.Draft7Validator(real.schema), value) is False:
            faults["a later draft's keyword"] += 1
        elif valid and not accepted:
            faults["false reject"] += 1
            found.append(f"false reject {value!r:.200}")
    return found


def verdict(validator: Any, value: Any) -> bool | None:
    """None where the validator fails: over a pattern that Python can't read, or a keyword in an older draft's form."""
    try:
        return bool(validator.is_valid(value))
    except (re.error, AttributeError, TypeError):
        return None


def walked(text: str, m: Matcher, validator: Any, rng: random.Random, faults: Faults) -> str:
    """A random walk under the mask and the shortest way from there, judged; "" if it is valid. `text`: the schema."""
    state, out = m.start, bytearray()
    for _ in range(N_TOKENS):
        ids = allowed(m, state)
        if not ids:
            faults["dead end"] += 1
            return f"dead end after {bytes(out)!r:.200}"
        ids -= set(VOCABULARY.end_ids)
        if not ids:
            break
        token = rng.choice(sorted(ids, key=lambda i: (len(VOCABULARY.token_bytes[i]), i))[: rng.choice([8, 400])])
        after = m.advance(state, token)
        assert after is not None
        out += VOCABULARY.token_bytes[token]
        state = after
    out += m.way_out(state)
    if CLASSES.search(text) and not out.isascii():
        return ""
    faults["walks"] += 1
    if verdict(validator, json.loads(out.decode())) is not False:
        return ""
    faults["invalid walk"] += 1
    return f"invalid walk {bytes(out)!r:.300}"


def judged(chosen: Sequence[Real]) -> Faults:
    faults = Faults()
    for real in chosen:
        judge(real, faults)
    return faults


def assert_exact(faults: Faults) -> None:
    assert [f for f in faults.shown if "refused" not in f] == []
    assert not faults["wrong"]


def test_a_sample_of_real_schemas() -> None:
    chosen = [s for s in schemas() if not is_held_back(s) and len(json.dumps(s.schema)) < 12_000][::30]
    faults = judged(chosen)
    assert_exact(faults)
    assert len(chosen) > 80 and faults["valid"] > 3 * len(chosen) and faults["invalid"] > len(chosen)
    assert faults["right"] >= 0.97 * (len(chosen) - faults["remote"])


REFUSED = {False: 6, True: 1}
"""Measured: a pattern with recursion (1), unknown dialects (3), references that lead nowhere or to no schema (3)."""


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("held_back", [False, True])
def test_all_real_schemas(held_back: bool) -> None:
    faults = judged([s for s in schemas() if is_held_back(s) == held_back])
    assert_exact(faults)
    assert faults["right"] > 1400 and faults["valid"] > 10_000 and faults["invalid"] > 6000
    assert faults["refused"] <= REFUSED[held_back], "\n".join(faults.shown)
