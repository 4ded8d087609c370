"""imp-cli: one prompt, a measurement or a perplexity, by a model in this process."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from imp_server.cli._offline import OfflineWish, _conversation
from imp_server.cli.main import run
from imp_server.core import SamplingIntent

from tests.real_model import smollm2

GENERATED = {
    "text", "prompt_tokens", "completion_tokens", "prefill_tps", "decode_tps", "prefill_ms", "decode_ms", "total_ms",
}  # fmt: skip
BENCHED = {"prefill_tps", "decode_tps", "pp_tokens", "pp_ms", "tg_tokens", "tg_ms", "reps", "peak_vram_mib"}


def offline(*arguments: str) -> int:
    return run(list(arguments), "imp-cli")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "nothing to do"),
        ("--bench --interactive", "can't go together"),
        ("--interactive --json", "--json is for one answer"),
        ("--prompt a --prompt-file b", "give the prompt once"),
        ("--prompt a --stop 1 --stop 2 --stop 3 --stop 4 --stop 5", "4 times at most"),
        ("--prompt a --image b.png", "images aren't supported"),
        ("--prompt a --streaming-kv", "nothing is left out"),
        ("--prompt a --mtp-spec-decode 2", "no model that imp runs has such heads"),
        ("--prompt-file /nowhere", "can't read /nowhere"),
        ("--prompt a --model none", "needs a model"),
    ],
)
def test_what_can_not_be_meant(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert offline(*line.split()) == 1
    assert message in capsys.readouterr().err


def test_what_ends_an_answer_does_so_in_a_talk_too() -> None:
    wish = OfflineWish("", True, 8, SamplingIntent({}), ("END",), False)
    assert _conversation(wish).request().output.stop == ("END",)


@pytest.mark.slow
def test_one_prompt_a_measurement_and_a_perplexity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", str(smollm2()), "--max-seq-len", "512", "--json")
    assert offline(*model, "--prompt", "Say hello.", "--max-tokens", "12", "--temperature", "0") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == GENERATED and told["text"] and 0 < told["completion_tokens"] <= 12
    assert told["prefill_ms"] > 0 and math.isclose(
        told["decode_tps"], 1e3 * (told["completion_tokens"] - 1) / told["decode_ms"]
    )
    assert offline(*model, "--bench", "--bench-pp", "32", "--bench-reps", "1", "--max-tokens", "8") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == BENCHED and (told["pp_tokens"], told["tg_tokens"], told["reps"]) == (32, 8, 1)
    perplexities = []
    for words in ("The cat sat on the mat, and the dog lay on the floor.", "mat floor The lay dog cat on, the sat."):
        (tmp_path / "corpus").write_text(words * 3)
        assert offline(*model, "--perplexity", str(tmp_path / "corpus")) == 0
        told = json.loads(capsys.readouterr().out)
        assert set(told) == {"perplexity", "tokens", "corpus"} and told["tokens"] > 20
        perplexities.append(told["perplexity"])
    assert 1 < perplexities[0] < perplexities[1], "a text in its order is less of a surprise"
