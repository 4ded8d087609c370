"""The process in which kernels are tried: `python -m imp_server.backends.cuda.proof.child`.

It reads a Request from its input and writes a line of JSON for each thing that it begins and ends, so that whoever
reads them knows what it was doing when it died.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import msgspec
import torch

from imp_server.backends.cuda.card import Card, CardOpener
from imp_server.backends.cuda.proof.cases import OperationCall
from imp_server.backends.cuda.proof.checking import CaseRun
from imp_server.backends.cuda.proof.kept import NO_MEMORY
from imp_server.core import DeviceError

EXIT_BROKEN = 3
"""A launch failed: nothing that this process says of others would be worth anything."""


class Request(msgspec.Struct, frozen=True):
    """`place`, `number`: of CardOpener. `numbers`: of `cases`, those to try."""

    place: str
    number: int
    cases: list[OperationCall]
    numbers: list[int]
    prepares: bool = True
    """Kernels of all cases are compiled side by side before the first is tried."""


class Line(msgspec.Struct, frozen=True):
    """`what` = ready | prepare | prepared | compile | run | done; `fault` of the last: what is wrong, "" = nothing."""

    what: str
    number: int = -1
    fault: str = ""
    has_kernel: bool = True
    compile_s: float = 0.0
    run_s: float = 0.0


def say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def end_with_parent() -> None:
    """A launch that hangs would outlive whoever waits for it."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(EXIT_BROKEN)


def main() -> int:
    threading.Thread(target=end_with_parent, name="imp-proof-parent", daemon=True).start()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    card = CardOpener(request.place, request.number).open("always")
    say(Line("ready"))
    with torch.inference_mode():
        if request.prepares:
            prepare(request, card)
        for number in request.numbers:
            line = tried(number, request.cases[number], card)
            say(line)
    return 0


def prepare(request: Request, card: Card) -> None:
    say(Line("prepare"))
    sources = {source for number in request.numbers for source in CaseRun(request.cases[number], card).sources}
    begun = time.perf_counter()
    assert card.launcher is not None
    card.launcher.prepare(sorted(sources, key=repr))
    say(Line("prepared", compile_s=time.perf_counter() - begun))


def tried(number: int, case: OperationCall, card: Card) -> Line:
    """Ends the process behind a launch that failed."""
    say(Line("compile", number))
    run = CaseRun(case, card)
    if not run.sources:
        return Line("done", number, has_kernel=False)
    begun = time.perf_counter()
    try:
        run.compile()
    except DeviceError as error:
        return Line("done", number, error.message)
    compiled = time.perf_counter()
    say(Line("run", number))
    try:
        fault = run.fault()
    except torch.OutOfMemoryError:
        return Line("done", number, NO_MEMORY)
    except Exception as error:
        say(Line("done", number, f"failed: {error}"[:500]))
        os._exit(EXIT_BROKEN)
    return Line("done", number, fault, compile_s=compiled - begun, run_s=time.perf_counter() - compiled)


if __name__ == "__main__":
    sys.exit(main())
