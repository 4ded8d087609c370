"""Two ways of doing the same, timed in turn within one run: the only speeds a test may compare."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def speedup(benchmark: Any, ours: Callable[[], Any], other: Callable[[], Any], rounds: int = 9) -> float:
    """How many times faster `ours` is: the best of each, since a busy neighbour only ever adds time.

    pytest-benchmark runs and reports ours, the other runs as its setup; where the plugin is off (beside xdist) it runs
    ours once, and the rest is run here.
    """
    times: dict[str, list[float]] = {"ours": [], "other": []}

    def timed(name: str, run: Callable[[], Any]) -> None:
        began = time.perf_counter()
        run()
        times[name].append(time.perf_counter() - began)

    def before() -> None:
        timed("other", other)

    def measured() -> None:
        timed("ours", ours)

    ours(), other()  # warms both
    benchmark.pedantic(measured, setup=before, rounds=rounds, iterations=1)
    while len(times["ours"]) < rounds:
        before()
        measured()
    ratio = min(times["other"]) / min(times["ours"])
    benchmark.extra_info["speedup"] = round(ratio, 2)
    return ratio
