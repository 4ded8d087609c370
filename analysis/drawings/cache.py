"""The tree of a prefix cache after three conversations: the real cache, over pretended memory."""

from __future__ import annotations

from typing import cast

import numpy as np
from imp_server.backends.base import BLOCK_TOKENS
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.rows import Row
from imp_server.schedule.tree import TreeNode

from analysis.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, Canvas
from tests.schedule.simulated import Simulation

SYSTEM = list(range(1000, 1032))
"""Two blocks of instructions that all begin with."""
QUESTIONS = {"Ann": range(2000, 2020), "Bob": range(3000, 3026)}
N_ANSWER = 10
WIDTH, HEIGHT, GAP, TOP, LEFT = 132, 46, 34, 64, 14
KINDS = ((1000, BLUE, "instructions"), (2000, GREEN, "Ann"), (3000, ORANGE, "Bob"), (2**31, GREY, "an answer"))


def simulated() -> tuple[PrefixCache, dict[str, tuple[int, list[int]]]]:
    """The cache, and for each turn how many tokens were there already and the blocks of its table."""
    world = Simulation(32, n_rows=1, context=160, step_ms=999, step_alone_ms=999, make_index=PrefixCache)
    turns: dict[str, tuple[int, list[int]]] = {}

    def asked(name: str, prompt: list[int], n_answer: int) -> Row:
        (row,) = world.submit(prompt, n_answer)
        while row not in world.done:
            world.step()
            if row.tables is not None:
                turns[name] = (row.n_cached, [int(block) for block in row.tables.columns(0)])
        return row

    ann = asked("Ann asks", [*SYSTEM, *QUESTIONS["Ann"]], N_ANSWER)
    asked("Bob asks", [*SYSTEM, *QUESTIONS["Bob"]], N_ANSWER)
    asked("Ann asks again", [*ann.sampler.history.tolist(), *range(2020, 2032)], 4)
    return cast(PrefixCache, world.scheduler.index), turns


def tokens_of(node: TreeNode) -> list[int]:
    tokens: list[int] = np.frombuffer(node.key, dtype=">i4").tolist()
    return tokens


def colour(token: int) -> str:
    return next(fill for first, fill, _ in reversed(KINDS) if first <= token < first + 1000) if token >= 1000 else GREY


def draw() -> str:
    cache, turns = simulated()
    places: dict[TreeNode, tuple[int, int]] = {}
    next_lane = 0

    def place(node: TreeNode, depth: int) -> None:
        nonlocal next_lane
        lane = next_lane
        for number, child in enumerate(sorted(node.children.values(), key=lambda c: c.key)):
            next_lane += number > 0
            place(child, depth + 1)
        places[node] = (depth, lane)

    roots = [node for node in cache.tree.nodes() if node.parent is not None and node.parent.is_root]
    for number, root in enumerate(sorted(roots, key=lambda node: node.key)):
        next_lane += number > 0
        place(root, 0)
    n_lanes, n_deep = 1 + max(lane for _, lane in places.values()), 1 + max(depth for depth, _ in places.values())
    bottom = TOP + n_lanes * (HEIGHT + GAP)
    canvas = Canvas(LEFT + n_deep * (WIDTH + GAP) + 10, bottom + 40 + 24 * len(turns), "The tree of a prefix cache")
    canvas.text(
        LEFT, 22, f"Blocks of {BLOCK_TOKENS} tokens that the cache keeps: what begins alike is there once", bold=True
    )
    canvas.legend(LEFT, 46, [(fill, name) for _, fill, name in KINDS])
    for node, (depth, lane) in places.items():
        x, y = LEFT + depth * (WIDTH + GAP), TOP + lane * (HEIGHT + GAP)
        cell = WIDTH / BLOCK_TOKENS
        for number, token in enumerate(tokens_of(node)):
            canvas.box(x + number * cell, y, cell, 20, colour(token), line="#ffffff")
        canvas.box(x, y, WIDTH, HEIGHT, "none")
        n_tokens = f", {node.n_tokens} tokens" if node.n_tokens < BLOCK_TOKENS else ""
        canvas.text(x + WIDTH / 2, y + 37, f"block {node.blocks[0]}{n_tokens}", at="middle")
        for child in node.children.values():
            other_depth, other = places[child]
            end = TOP + other * (HEIGHT + GAP) + HEIGHT / 2
            canvas.line(x + WIDTH, y + HEIGHT / 2, LEFT + other_depth * (WIDTH + GAP), end, arrow=True)
    canvas.text(LEFT, bottom + 6, "What each turn found, and the table through which it read and wrote:", bold=True)
    for number, (name, (n_cached, table)) in enumerate(turns.items()):
        y = bottom + 30 + 24 * number
        canvas.text(LEFT, y, f"{name}: {n_cached} tokens were there")
        for at, block in enumerate(table):
            canvas.box(
                LEFT + 240 + 40 * at,
                y - 15,
                36,
                20,
                PURPLE if at * BLOCK_TOKENS < n_cached - n_cached % BLOCK_TOKENS else "#ffffff",
                line=INK,
            )
            canvas.text(LEFT + 258 + 40 * at, y, str(block), at="middle")
    return canvas.svg()
