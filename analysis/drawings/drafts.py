"""A few steps of an answer with the real n-gram drafter, on words instead of tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from imp_server.core import SamplingParams
from imp_server.decode.drafter import DraftedRow
from imp_server.decode.ngram import NgramDrafter, NgramKnobs
from imp_server.decode.state import SamplerState

from analysis.drawings.canvas import BLUE, GREEN, INK, ORANGE, RED, Canvas

PROMPT = "the cat sat on the mat and the dog lay by the door . now with a fox for the dog :"
ANSWER = "the cat sat on the mat and the fox lay by the door ."
KNOBS = NgramKnobs(k=5, suffix=False, min_match=2, max_match=4, miss_burst=1)
LEFT, TOP, ROW, GAP = 60, 92, 32, 4


class Drafted(NamedTuple):
    n_before: int
    """Words of the answer that stood when the step began."""
    guessed: list[str]
    n_accepted: int
    own: str
    """The word that the model itself wrote behind what held."""


def steps() -> list[Drafted]:
    words = sorted({*PROMPT.split(), *ANSWER.split()})
    prompt, answer = (
        np.array([words.index(word) for word in text.split()], dtype=np.int32) for text in (PROMPT, ANSWER)
    )
    state = SamplerState(SamplingParams(), 0, prompt, len(prompt) + len(answer) + 1)
    row, made, n_before = NgramDrafter(KNOBS).start(DraftedRow(state)), [], 0
    while n_before < len(answer):
        draft = row.propose(min(KNOBS.k, len(answer) - n_before - 1)).ids
        n_accepted = next((i for i, token in enumerate(draft) if token != answer[n_before + i]), len(draft))
        row.settle(len(draft), n_accepted)
        own = answer[n_before + n_accepted]
        made.append(Drafted(n_before, [words[i] for i in draft], n_accepted, words[own]))
        state.append(answer[n_before : n_before + n_accepted + 1].tolist())
        n_before += n_accepted + 1
    return made


def width(word: str) -> float:
    return 14 + 7.4 * len(word)


def draw() -> str:
    made, answer = steps(), ANSWER.split()
    starts = [LEFT + 50.0]
    for word in answer:
        starts.append(starts[-1] + width(word) + GAP)
    canvas = Canvas(int(starts[-1] + 120), TOP + ROW * len(made) + 46, "Drafts, verified")
    canvas.text(12, 22, "Each line is one run of the model, over all of its boxes at once", bold=True)
    canvas.legend(
        12,
        46,
        [
            (GREEN, "guess that held"),
            (RED, "guess that didn't"),
            (BLUE, "the model's own word"),
            ("#ffffff", "written before"),
        ],
    )
    canvas.text(12, 72, f"The prompt: {PROMPT}")
    for number, step in enumerate(made):
        y = TOP + ROW * number
        canvas.text(12, y + 17, f"run {number + 1}")
        for at in range(step.n_before):
            canvas.text(starts[at] + width(answer[at]) / 2, y + 17, answer[at], at="middle", ink="#9ca3af")
        for at, word in enumerate(step.guessed[: step.n_accepted]):
            boxed(canvas, starts[step.n_before + at], y, word, GREEN)
        boxed(canvas, starts[step.n_before + step.n_accepted], y, step.own, BLUE)
        x = starts[step.n_before + step.n_accepted + 1] + 14
        for word in step.guessed[step.n_accepted :]:
            boxed(canvas, x, y, word, RED)
            x += width(word) + GAP
    said = "What held is what the model would have written; the rest is thrown away, and costs its computing alone."
    canvas.text(12, TOP + ROW * len(made) + 26, f"{len(answer)} words in {len(made)} runs. {said}")
    return canvas.svg()


def boxed(canvas: Canvas, x: float, y: float, word: str, fill: str) -> None:
    canvas.box(x, y, width(word), 24, fill, line=INK if fill != ORANGE else ORANGE)
    canvas.text(x + width(word) / 2, y + 17, word, at="middle")
