"""A hunt for requests that hold a server: drawn by numbers, sent to a real one, watched by a polite client.

    PYTHONPATH=. python analysis/hostile_hunt.py MODEL [--minutes 20] [--seed 0] [--clients 8] [--scale 1.0]
        [--models-every 6]

Rounds of two kinds take turns: eight inputs one by one, of which CPU time is charged to each, and eight by as many
clients at once, while the polite client's first tokens and tokens/s are compared with what it had beside as many
ordinary clients. A round that was late is sent once more to a new server: the machine may have been busy. What is
still wrong then is written to `--out`, made smaller if it is one body. Between the rounds small models are served whose
chat template or tokeniser is made to hurt. Inputs are grammars in every place that takes one, bodies (large, deep,
many, compressed over and over), choices times logprobs, lists of prompts, and chains of responses.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.api.hostile_bodies import HostileBody
from tests.faults.hostile_models import faults as model_faults
from tests.faults.hostile_models import hostile_models
from tests.faults.hostile_requests import any_request, drawn
from tests.faults.hunting import Fault, Target, cpu_bound_s, hunted, latency, minimised, too_late
from tests.live.served_model import serving

PER_ROUND = 8
BASE_EVERY = 4
"""Rounds."""


class Hunt:
    """Owner of the servers it starts, one at a time, and of what was found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.n_inputs, self.n_rounds = 0, 0
        self.kinds, self.answers = Counter[str](), Counter[str]()
        self.found: list[Fault] = []
        self.n_late_once = 0

    @contextlib.contextmanager
    def server(self) -> Iterator[Target]:
        flags = ("--threads", "1", "--speculative-enabled", "off", "--kv-cache-size-mib", "128")
        with serving(self.options.model, *flags) as (url, pid), hunted(url, pid) as target:
            target.measure(4, 0)
            yield target
            self.answers += target.answers

    def run(self) -> None:
        end = time.monotonic() + 60 * self.options.minutes
        number = self.options.seed
        while time.monotonic() < end:
            with self.server() as target:
                for _ in range(24):
                    n_found = len(self.found)
                    self.round(target, number)
                    number += 1
                    if self.options.models_every and number % self.options.models_every == 0:
                        self.model(number)
                    if time.monotonic() > end or len(self.found) > n_found:
                        break

    def round(self, target: Target, number: int) -> None:
        is_crowd = number % 2 == 0
        bodies = drawn(number, PER_ROUND, any_request(self.options.scale, many=not is_crowd))
        self.n_rounds += 1
        self.n_inputs += len(bodies)
        self.kinds.update(body.kind for body in bodies)
        if not is_crowd:
            faults = [fault for body in bodies for fault in target.one(body)]
            target.polite.take()
        else:
            faults = self.crowded(target, bodies)
        print(f"round {number}: {len(bodies)} inputs, {len(faults)} faults", flush=True)
        for fault in faults:
            self.keep(number, fault)

    def model(self, number: int) -> None:
        """A server of its own, beside the other one."""
        for model in drawn(number, 8, hostile_models())[-1:]:  # the first that are drawn are the simplest
            kind = "a template" if model.template else "a tokenizer"
            self.n_inputs += 1
            self.kinds[kind] += 1
            with tempfile.TemporaryDirectory() as folder:
                found = model_faults(model, Path(folder))
            print(f"{kind}: {len(found)} faults", flush=True)
            data = json.dumps(model._asdict()).encode()
            for what in found:
                self.keep(number, Fault(what, [HostileBody(kind, "", data)]), smaller=False)

    def crowded(self, target: Target, bodies: list[HostileBody]) -> list[Fault]:
        if (self.n_rounds - 1) % BASE_EVERY == 0 or target.base is None:
            target.measure(5, self.options.clients)
        faults, late = crowd(target, bodies, self.options.clients)
        if late:
            self.n_late_once += 1
            print(f"  late: {late}; once more", flush=True)
            with self.server() as again:
                again.measure(5, self.options.clients)
                _, late = crowd(again, bodies, self.options.clients)
        return [*faults, *([Fault(late, bodies)] if late else [])]

    def keep(self, number: int, fault: Fault, *, smaller: bool = True) -> None:
        self.found.append(fault)
        bodies = fault.bodies
        print(f"  FOUND {fault.what}\n    {bodies[:1]}", flush=True)
        if len(bodies) == 1 and smaller and self.options.minimise:
            bodies = [self.smaller(bodies[0])]
        self.options.out.mkdir(parents=True, exist_ok=True)
        path = self.options.out / f"{number}_{len(self.found)}.json"
        path.write_text(json.dumps({"what": fault.what, "bodies": [_kept(body) for body in bodies]}))

    def smaller(self, body: HostileBody) -> HostileBody:
        """Each try has a server of its own: verdicts are remembered."""

        def still(candidate: HostileBody) -> bool:
            with self.server() as target:
                return bool(target.one(candidate))

        return minimised(body, still, 20)


def crowd(target: Target, bodies: list[HostileBody], n_clients: int) -> tuple[list[Fault], str]:
    target.polite.take()
    faults = target.crowd(bodies, n_clients)
    chats = target.polite.take()
    assert target.base is not None
    return faults, too_late(latency(chats), target.base) if len(chats) > 3 else ""


def _kept(body: HostileBody) -> dict[str, Any]:
    data = base64.b64encode(body.data[:20_000_000]).decode()
    return {"kind": body.kind, "path": body.path, "headers": body.headers, "data": data, "bound_s": cpu_bound_s(body)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--models-every", type=int, default=6, help="rounds; 0 = never")
    parser.add_argument("--out", type=Path, default=Path("build/hunt"))
    parser.add_argument("--minimise", action=argparse.BooleanOptionalAction, default=False)
    options = parser.parse_args()
    hunt = Hunt(options)
    try:
        hunt.run()
    finally:
        print(f"{hunt.n_inputs} inputs in {hunt.n_rounds} rounds from seed {options.seed}; {len(hunt.found)} faults;")
        print(f"late once, not twice: {hunt.n_late_once}; answers: {dict(hunt.answers.most_common())}")
        print(f"kinds: {dict(hunt.kinds.most_common())}")
    sys.exit(bool(hunt.found))


if __name__ == "__main__":
    main()
