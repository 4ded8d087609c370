"""What four requests do in the first steps: the real scheduler, over pretended memory, a millisecond a token."""

from __future__ import annotations

from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.rows import Row

from analysis.drawings.canvas import BLUE, FAINT, GREEN, INK, Canvas
from tests.schedule.simulated import Simulation

STEP_MS = 16
N_STEPS = 10
REQUESTS = (  # step of arrival, name, first id, prompt, answer
    (0, "A: 20 tokens in, 9 out", 100, 20, 9),
    (1, "B: 46 in, 3 out", 200, 46, 3),
    (2, "C: 10 in, 7 out", 300, 10, 7),
    (3, "D: B's prompt again, 4 out", 200, 46, 4),
)
LEFT, TOP, PER_MS, PER_ROW = 190, 62, 5.2, 44


def simulated() -> tuple[list[str], list[list[tuple[str, int, bool, int]]]]:
    """Names of the rows; for each step (name, tokens, is it its answer's, tokens found in the cache)."""
    world = Simulation(64, n_rows=4, context=128, step_ms=STEP_MS, step_alone_ms=STEP_MS, make_index=PrefixCache)
    names: dict[Row, str] = {}
    steps, found = [], set[Row]()
    for number in range(N_STEPS):
        for arrives, name, first, n_prompt, n_output in REQUESTS:
            if arrives == number:
                (row,) = world.submit(range(first, first + n_prompt), n_output)
                names[row] = name
        step = []
        for chunk in world.step().chunks:
            cached = 0 if chunk.row in found else chunk.row.n_cached
            found.add(chunk.row)
            step.append(
                (names[chunk.row], chunk.n_tokens, chunk.start + chunk.n_tokens > prompt_of(names[chunk.row]), cached)
            )
        steps.append(step)
    return [name for _, name, *_ in REQUESTS], steps


def prompt_of(name: str) -> int:
    return next(n_prompt for _, other, _, n_prompt, _ in REQUESTS if other == name)


def draw() -> str:
    names, steps = simulated()
    ends = [0]
    for step in steps:
        ends.append(ends[-1] + sum(n for _, n, *_ in step))
    bottom = TOP + PER_ROW * len(names)
    canvas = Canvas(int(LEFT + ends[-1] * PER_MS + 20), bottom + 44, "Four requests in the scheduler's steps")
    canvas.text(12, 22, f"Steps of about {STEP_MS} ms, a token costs one", bold=True)
    canvas.legend(LEFT + 110, 22, [(BLUE, "prompt"), (GREEN, "a token of the answer")])
    for number, end in enumerate(ends):
        x = LEFT + end * PER_MS
        canvas.line(x, TOP - 14, x, bottom, ink=FAINT, dashed=True)
        if number < len(steps) and steps[number]:
            canvas.text((x + LEFT + ends[number + 1] * PER_MS) / 2, TOP - 18, str(number + 1), at="middle", size=10)
    for place, name in enumerate(names):
        y = TOP + place * PER_ROW
        canvas.text(12, y + 20, name)
        arrival = LEFT + ends[REQUESTS[place][0]] * PER_MS
        canvas.line(arrival, y - 2, arrival, y + 34, ink=INK)
        for number, step in enumerate(steps):
            x = LEFT + ends[number] * PER_MS
            for other, n_tokens, is_answer, cached in step:
                if other == name:
                    if cached:
                        canvas.text(x - 4, y + 20, f"{cached} tokens are there", at="end", size=10)
                    canvas.box(x, y + 4, n_tokens * PER_MS, 24, GREEN if is_answer else BLUE)
                    if n_tokens > 1:
                        canvas.text(x + n_tokens * PER_MS / 2, y + 20, str(n_tokens), at="middle", size=10)
                x += n_tokens * PER_MS
    canvas.text(
        12,
        bottom + 26,
        "Across: time, cut into steps. Upright lines: a request arrives. Every answer gets its token first,",
    )
    canvas.text(
        12,
        bottom + 40,
        "then prompts share what is left of the time, the shortest first. D waits while B computes the same prompt.",
    )
    return canvas.svg()
