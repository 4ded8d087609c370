"""Kernels are tried by a process that may die or hang: what it was doing is condemned, all else is tried again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from imp_server.backends.cuda.card import CardOpener
from imp_server.backends.cuda.proof.cases import OperationCall
from imp_server.backends.cuda.proof.child import Request
from imp_server.backends.cuda.proof.kept import NO_MEMORY, NO_TIME, SERVING, KernelVerdict, all_kept
from imp_server.backends.cuda.proof.prover import KernelProver, TimeLimits
from imp_server.backends.cuda.proof.verdicts import VerdictFile

CHILD = """
import json, os, sys, time
request = json.loads(sys.argv[1])
def say(what, number=-1, **more):
    print(json.dumps({"what": what, "number": number, **more}), flush=True)
if request["place"] == "broken":
    sys.exit(1)
say("ready")
if request["prepares"]:
    say("prepare")
    if request["place"] == "can't prepare":
        os._exit(1)
    say("prepared", compile_s=2.0)
for number in request["numbers"]:
    does = request["cases"][number]["arguments"]["does"]
    say("compile", number)
    if does == "dies at once":
        os._exit(1)
    if does == "nonsense":
        print("hello", flush=True)
    if does == "no kernel":
        say("done", number, has_kernel=False)
        continue
    say("run", number)
    if does == "dies":
        os._exit(9)
    if does == "hangs":
        time.sleep(60)
    fault = "" if does == "works" else does
    say("done", number, fault=fault, compile_s=1.0, run_s=0.5)
    if does == "failed":
        os._exit(3)
"""
LIMITS = TimeLimits(start=20.0, compile=20.0, run=0.4)


class Starts:
    def __init__(self) -> None:
        self.tried: list[list[int]] = []

    def __call__(self, request: Request) -> subprocess.Popen[bytes]:
        self.tried.append(request.numbers)
        told = msgspec.json.encode(request).decode()
        return subprocess.Popen([sys.executable, "-SEc", CHILD, told], stdout=subprocess.PIPE)


def verdict(
    *cases: tuple[str, str], place: str = "any", limits: TimeLimits = LIMITS
) -> tuple[KernelVerdict | None, Starts]:
    starts = Starts()
    made = [OperationCall(operation, {"does": does}) for operation, does in cases]
    return KernelProver(CardOpener(place, 0), made, limits, starts).verdict(), starts


def test_all_that_works_is_proved_in_one_process() -> None:
    found, starts = verdict(("norm", "works"), ("norm", "works"), ("add", "no kernel"), ("scale", "works"))
    assert found == KernelVerdict(["norm"], {}, 2, 4.0, 1.0), "compiling counts"
    assert starts.tried == [[0, 1, 2]], "there is no kernel for scale"
    assert "1 operations proved in 2 cases" in found.text()


def test_what_kills_or_hangs_it_is_condemned_and_the_rest_is_tried_again() -> None:
    found, starts = verdict(
        ("norm", "works"),
        ("add_norm", "dies"),
        ("add_norm", "works"),
        ("add", "hangs"),
        ("project", "off by 1"),
        ("project", "works"),
        ("embed", "failed"),
        ("route", "dies at once"),
        ("sample", "works"),
    )
    assert found is not None and found.proved == ["norm", "sample"]
    assert found.condemned == {
        "add_norm": "the process died when it was run",
        "add": "no answer within 0 s when it was run",
        "project": "off by 1",
        "embed": "failed",
        "route": "the process died when it was compiled",
    }
    assert starts.tried == [[*range(9)], [3, 4, 5, 6, 7, 8], [4, 5, 6, 7, 8], [7, 8], [8]]
    assert "not project: off by 1" in found.text()


def test_what_says_nonsense_is_condemned() -> None:
    found, starts = verdict(("norm", "nonsense"), ("add", "works"))
    assert found is not None and found.proved == ["add"] and set(found.condemned) == {"norm"} and len(starts.tried) == 2


def test_a_process_that_never_starts_says_nothing_of_kernels() -> None:
    assert verdict(("norm", "works"), place="broken")[0] is None


def test_what_dies_when_all_is_prepared_is_tried_case_by_case() -> None:
    found, starts = verdict(("norm", "works"), ("add", "dies at once"), place="can't prepare")
    assert found is not None and found.proved == ["norm"] and set(found.condemned) == {"add"}
    assert starts.tried == [[0, 1], [0, 1]]


def test_what_there_is_no_time_for_is_not_used_and_not_kept() -> None:
    found, _ = verdict(("norm", "works"), limits=LIMITS._replace(whole=0.0))
    assert found is not None and found.proved == [] and found.condemned == {"norm": NO_TIME} and not found.lasts
    assert not KernelVerdict([], {"norm": NO_MEMORY}).lasts and KernelVerdict([], {"norm": "off by 1"}).lasts


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., VerdictFile]:
    monkeypatch.setenv("IMP_HOME", str(tmp_path))
    return lambda card="card", does="works": VerdictFile(card, "tiny", [OperationCall("norm", {"does": does})])


def test_a_verdict_holds_for_its_card_its_sources_and_its_cases(
    file: Callable[..., VerdictFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file().read() is None and all_kept() == []
    file().write(KernelVerdict(["norm"], {"add": "off by 1"}, 3))
    assert file().read() == KernelVerdict(["norm"], {"add": "off by 1"}, 3)
    assert file(card="another").read() is None and file(does="more").read() is None
    assert [(kept.card, kept.model) for kept in all_kept()] == [("card", "tiny")]
    monkeypatch.setattr("imp_server.backends.cuda.proof.verdicts.kernel_sources", lambda: {"norm.cu": "other"})
    assert file().read() is None


def test_what_failed_while_serving_stays_condemned(file: Callable[..., VerdictFile]) -> None:
    file().condemn(["norm"])
    assert file().read() == KernelVerdict([], {"norm": SERVING}, was_tried=False)
    file().write(KernelVerdict(["norm", "add"], {}, 3))
    file().condemn(["add"])
    assert file().read() == KernelVerdict(["norm"], {"add": SERVING}, 3)
    file().path.write_bytes(b"{")
    assert file().read() is None and all_kept() == []
