"""Inputs made from whole ones by chance, for a time; what fails is kept in tests/fuzz/corpus and asked again by CI.

    python -m tests.fuzz.driver [--seconds 60] [--seed N] [--only gguf,schema]      (`make fuzz`)

Where atheris is installed (--atheris TARGET), it looks for inputs that reach new lines of the code instead.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"
SLOW_S = 5.0
"""Of processor time: an input that takes longer counts as failed."""
_STUMBLED_OVER = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\xff" * 8, b"\x00\x00\x00\x80", b'"', b"{", b"[" * 40),
    *(b"null", b"-1", b"1e999", b"18446744073709551616", b"\\ud800", b"{%", b"%}", b"{{", b"</", b"<|", "é".encode()),
)


def kept(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*")) if path.name != ".gitkeep"]


def changed(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """One to six changes: bits, pieces lost, doubled, moved, taken from others or from what programs stumble over."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at, size = chance.randrange(len(made) + 1), min(chance.choice((1, 2, 4, 8, 32)), 64)
        match chance.randrange(7):
            case 0 if made:
                made[at % len(made)] ^= 1 << chance.randrange(8)
            case 1:
                del made[at : at + size]
            case 2:
                made[at:at] = made[at : at + size]
            case 3:
                piece = chance.choice(_STUMBLED_OVER)
                made[at : at + len(piece)] = piece
            case 4:
                made[at:at] = chance.choice(_STUMBLED_OVER)
            case 5:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                made[at:at] = other[start : start + size]
            case _:
                del made[max(at, 8) :]
    return bytes(made)


def failure(run: Callable[[bytes], None], data: bytes) -> str | None:
    """What it ended in, if not as it should."""
    began = time.process_time()
    try:
        run(data)
    except Exception:
        return traceback.format_exc(limit=-4)
    took = time.process_time() - began
    return f"it took {took:.1f} s" if took > SLOW_S else None


def fuzz(target: Target, chance: random.Random, *, n: int = 0, until_s: float = 0.0) -> tuple[int, bytes, str]:
    """(inputs tried, the input that fails, why); `n` inputs, or until then."""
    whole = [*target.seeds(), *kept(target.name)]
    n_tried = 0
    with target.open() as run:
        for data in whole:
            if why := failure(run, data):
                return n_tried, data, why
        while n_tried < n or time.monotonic() < until_s:
            data = changed(chance.choice(whole), whole, chance)
            n_tried += 1
            if why := failure(run, data):
                return n_tried, data, why
    return n_tried, b"", ""


def _with_atheris(target: Target, arguments: Sequence[str]) -> None:
    import atheris

    with target.open() as run:
        atheris.Setup([sys.argv[0], str(CORPUS / target.name), *arguments], run)
        atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help=", ".join(TARGETS))
    parser.add_argument("--atheris", choices=list(TARGETS), help="this target, until it is stopped")
    asked, further = parser.parse_known_args()
    if asked.atheris:
        _with_atheris(TARGETS[asked.atheris], further)
        return 0
    names = [name for name in asked.only.split(",") if name] or list(TARGETS)
    failed = False
    for name in names:
        until_s = time.monotonic() + asked.seconds / len(names)
        n_tried, data, why = fuzz(TARGETS[name], random.Random(f"{asked.seed} {name}"), until_s=until_s)
        print(f"{name:12} {n_tried:8} inputs {'FAILED' if why else 'ok'}", flush=True)
        if why:
            failed = True
            path = CORPUS / name / hashlib.sha256(data).hexdigest()[:16]
            path.write_bytes(data)
            print(f"kept as {path} (seed {asked.seed})\n{why}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
