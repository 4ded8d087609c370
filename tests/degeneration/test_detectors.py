"""Each detector on planted degenerate texts, and on texts that only look like them."""

from __future__ import annotations

import time

import pytest
from imp_server.degeneration import detectors

GOOD = (
    "The ferry left the pier before noon, and by evening the fog had lifted. Nobody had asked the keeper about his "
    "lamp, which he had cleaned, filled and lit as on any other day. A gull sat on the rail and looked at the tide."
)
CHINESE = (
    "灯塔看守人每天傍晚点亮灯火，海面上的渔船便知道回家的方向。"
    "他的女儿在窗边写信，信里说春天快要来了，院子里的桃树开始发芽。"
)


@pytest.mark.parametrize("text", [GOOD, CHINESE, "", "ha ha ha", "| a | b |\n|-----|-----|\n" * 3, "-" * 60])
def test_good_texts_are_let_pass(text: str) -> None:
    assert detectors.longest_run(text) <= detectors.MAX_WORD_RUN
    assert detectors.ngram_loop(text) is None
    assert detectors.character_loop(text) is None
    assert detectors.unique_ratio(text) > detectors.MIN_UNIQUE
    assert detectors.raw_markers(text) == [] and detectors.think_tags(text) == []
    assert detectors.reasoning_opener(text) is None
    assert text.startswith(("|", "-")) or detectors.garbled(text) is None


def test_a_repeated_word() -> None:
    assert detectors.longest_run(GOOD + " yes" * 7) == 7
    assert detectors.longest_run("好的" * 9) == 9


@pytest.mark.parametrize("n_times,found", [(3, False), (4, True)])
def test_a_phrase_over_and_over(n_times: int, found: bool) -> None:
    assert (detectors.ngram_loop(GOOD + " and so it went" * n_times) is not None) == found


@pytest.mark.parametrize("n_times,found", [(5, False), (6, True)])
def test_characters_over_and_over(n_times: int, found: bool) -> None:
    assert (detectors.character_loop("start: " + "abcdefg," * n_times + "end") is not None) == found
    assert (detectors.character_loop("海よ海よ山川" * n_times) is not None) == found


def test_an_endless_rule_is_a_loop() -> None:
    assert detectors.character_loop("-" * 500) is not None


def test_few_different_words() -> None:
    assert detectors.unique_ratio("a b c d e " * 20) < detectors.MIN_UNIQUE
    assert detectors.unique_ratio("a b " * 5) == 1.0  # too short to judge


@pytest.mark.parametrize("marker", ["<|im_end|>", "[/INST]", "<start_of_turn>", "<pad>", "\x00", "</s>"])
def test_control_tokens_as_text(marker: str) -> None:
    assert marker in detectors.raw_markers(GOOD + marker)


@pytest.mark.parametrize(
    "opener", ["Okay, so the user wants", "Der Nutzer fragt nach", "  Hmm, let us see", "First, I need to"]
)
def test_thoughts_at_the_start(opener: str) -> None:
    assert detectors.reasoning_opener(opener + " something.") is not None
    assert detectors.reasoning_opener(GOOD + opener) is None


def test_no_text_at_all() -> None:
    assert detectors.garbled("ok \x01 then") and detectors.garbled("a \ufffd b")
    assert detectors.garbled("]]}{;;::!!??##%%&&((--==") is not None


def test_time_is_linear() -> None:
    """A megabyte takes seconds, not hours: each detector walks the text a fixed number of times."""
    text = "abcdefgh " * 4000
    begin = time.process_time()
    detectors.character_loop(GOOD * 40), detectors.ngram_loop(text), detectors.longest_run(text)
    assert time.process_time() - begin < 4
