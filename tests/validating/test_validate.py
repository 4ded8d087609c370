"""`imp validate`: a healthy server passes, and each planted fault is found by the check that is for it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from imp_server.degeneration.client import Client
from imp_server.degeneration.main import main as degenerates
from imp_server.validating import parity
from imp_server.validating.checks import CHECKS, PROMPTS, TEXTS, run
from imp_server.validating.main import main
from imp_server.validating.server import Completed, Refused, Served

Command = Callable[[list[str]], int]
SENTENCE = "the keeper of a light house sees ships at night and writes their names into his long old book by hand"
WORDS = tuple(SENTENCE.split())


class Healthy(Served):
    """Words by chance, from a seed that prompt and seed make; a token is a byte of text."""

    def __init__(self) -> None:
        self.model = "m"

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenize(self, ids: list[int]) -> str:
        return bytes(ids).decode()

    def complete(self, prompt: str | list[int], max_tokens: int, **options: Any) -> Completed:
        seed = options.get("seed") if options.get("temperature") else None
        chance = random.Random(f"{prompt} {seed}")
        text = " ".join(chance.choice(WORDS) + str(chance.randrange(100)) for _ in range(max_tokens))
        own: list[float | None] = [None] * bool(options.get("echo")) + [-0.1] * max_tokens
        return Completed(text, "length", own, [None if p is None else {"a": -0.1, "b": -3.0} for p in own])


class LosesBlanks(Healthy):
    def detokenize(self, ids: list[int]) -> str:
        return " ".join(super().detokenize(ids).split(" ")).replace("  ", " ")


class Drifts(Healthy):
    n = 0

    def complete(self, prompt: str | list[int], max_tokens: int, **options: Any) -> Completed:
        found = super().complete(prompt, max_tokens, **options)
        self.n += 1
        found.text += str(self.n) if not options else ""
        return found


class IgnoresSeeds(Healthy):
    def complete(self, prompt: str | list[int], max_tokens: int, **options: Any) -> Completed:
        return super().complete(prompt, max_tokens, **{**options, "seed": 0})


class Changed(Healthy):
    """Its greedy text, of which some part is wrong."""

    def changed(self, found: Completed) -> None:
        raise NotImplementedError

    def complete(self, prompt: str | list[int], max_tokens: int, **options: Any) -> Completed:
        found = super().complete(prompt, max_tokens, **options)
        self.changed(found)
        return found


class Leaks(Changed):
    def changed(self, found: Completed) -> None:
        found.text += "<|im_end|>"


class SurerThanSure(Changed):
    def changed(self, found: Completed) -> None:
        found.logprobs[3] = 0.5


class NotANumber(Changed):
    def changed(self, found: Completed) -> None:
        found.logprobs[3] = float("nan")


class NotTheLikeliest(Changed):
    def changed(self, found: Completed) -> None:
        if found.logprobs[0] is not None:
            found.logprobs[3] = -2.0


class Loops(Healthy):
    def complete(self, prompt: str | list[int], max_tokens: int, **options: Any) -> Completed:
        found = super().complete(prompt, max_tokens, **options)
        found.text = "and so on and on. " * (max_tokens // 4) if max_tokens > 100 else found.text
        return found


class Refuses(Healthy):
    def tokenize(self, text: str) -> list[int]:
        raise Refused("/tokenize answers 404: not found")


def failed(served: Served, checkpoint: Path | None = None) -> set[str]:
    names = [name for name in CHECKS if name != "parity"]
    return {finding.category for finding in run(served, checkpoint, names) if finding.verdict == "fail"}


def test_a_healthy_server_passes() -> None:
    assert failed(Healthy()) == set()


@pytest.mark.parametrize(
    "faulty, found_by",
    [
        (LosesBlanks, "tokenizer"),
        (Drifts, "replay"),
        (IgnoresSeeds, "determinism"),
        (Leaks, "prompts"),
        (SurerThanSure, "logprobs"),
        (NotANumber, "logprobs"),
        (NotTheLikeliest, "logprobs"),
        (Loops, "repetition"),
        (Refuses, "tokenizer"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_each_fault_is_found_by_its_check(faulty: type[Served], found_by: str) -> None:
    assert failed(faulty()) == {found_by}  # type: ignore[call-arg]


def test_the_published_tokenizer_is_compared(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = pre_tokenizers.ByteLevel.alphabet()
    library = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(letters))}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.save(str(tmp_path / "tokenizer.json"))

    class Same(Healthy):
        def tokenize(self, text: str) -> list[int]:
            return list(library.encode(text, add_special_tokens=False).ids)

        def detokenize(self, ids: list[int]) -> str:
            return str(library.decode(ids, skip_special_tokens=False))

    assert failed(Same(), tmp_path) == set()
    assert failed(Healthy(), tmp_path) == {"tokenizer"}


def test_wrong_usage_and_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and main(["--only", "smell", "--url", "http://localhost:1"]) == 2
    assert main(["--url", "http://localhost:1"]) == 2
    told = capsys.readouterr().err
    assert "name a checkpoint" in told and "smell" in told and "no answer from http://localhost:1" in told


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:port", "ftp://127.0.0.1:1"])
@pytest.mark.parametrize("check", [main, degenerates])
def test_what_is_no_url_is_told(
    url: str, check: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(["--url", url]) == 2
    assert url in capsys.readouterr().err


def test_a_reply_of_any_shape_fails_its_check_alone() -> None:
    class Odd(Client):
        def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
            return 200, {"choices": ["x"], "tokens": 7}

    found = list(run(Served(Odd("http://localhost:1"), "m"), None, ["prompts", "logprobs", "tokenizer"]))
    assert [(each.category, each.verdict) for each in found] == [
        ("prompts", "fail"), ("logprobs", "fail"), ("tokenizer", "fail"),
    ]  # fmt: skip


def test_a_checkpoint_that_libraries_do_not_know_is_compared_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: Path) -> None:
        raise ValueError("unheard-of")

    monkeypatch.setattr(parity, "_Reference", unknown)
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    found = list(run(Healthy(), tmp_path, ["tokenizer", "parity"]))
    assert [each.check for each in found if each.verdict == "skip"] == ["tokenizer/library", "parity/transformers"]
    assert all(each.verdict in ("pass", "skip") for each in found)


@pytest.mark.parametrize("path", ["analysis/validate_safetensors.py", "scripts/validate_safetensors.py"])
def test_the_scripts_need_nothing_but_python(repo_root: Path, path: str) -> None:
    command = [sys.executable, "-S", "-E", str(repo_root / path), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "imp validate" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_model_is_healthy(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from imp_server.cli._own_server import served

    with served(str(smollm2_path)) as url:
        assert main([str(smollm2_path), "--url", url]) == 0, capsys.readouterr().out
    assert len(PROMPTS) >= 6 and len(TEXTS) >= 7
