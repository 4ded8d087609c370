"""The threads of a forward: each chunk runs once, what one throws reaches the leader, and the pool goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "kernels" / "cpu" / "engine"
PROGRAM = """
#include <atomic>
#include <new>
#include <vector>
#include "pool.h"

int main() {
    imp::Pool pool(4, 50);
    pool.use(4);
    for (int round = 0; round < 2000; ++round) {
        std::atomic<int> n_run{0};
        bool failed = false;
        try {
            pool.run(64, [&](int chunk, int) {
                ++n_run;
                if (round % 2 && chunk % 7 == 3) throw std::bad_alloc();
            });
        } catch (const std::bad_alloc&) {
            failed = true;
        }
        if (failed != (round % 2 == 1)) return 1;
        if (n_run != 64) return 2;
    }
    for (int round = 0; round < 20000; ++round) {
        const int n_chunks = 2 + round % 97;
        std::vector<std::atomic<int>> n_run(n_chunks);
        std::vector<int> owner(n_chunks, -1);
        pool.use(1 + round % 4);
        pool.run_in_order(n_chunks, [&](int chunk, int worker) {
            ++n_run[chunk];
            owner[chunk] = worker;
        });
        for (int chunk = 0; chunk < n_chunks; ++chunk)
            if (n_run[chunk] != 1) return 3;
        if (pool.in_use() == 1)
            for (const int worker : owner)
                if (worker) return 4;
    }
    return 0;
}
"""


@pytest.mark.slow
def test_each_chunk_runs_once_and_what_it_throws_reaches_the_leader(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "").split() or [shutil.which("g++") or shutil.which("clang++") or ""]
    if not compiler[0]:
        pytest.skip("no compiler")
    program = tmp_path / "program"
    (tmp_path / "program.cpp").write_text(PROGRAM)
    sources = [str(tmp_path / "program.cpp"), str(ENGINE / "pool.cpp"), f"-I{ENGINE}"]
    subprocess.run([*compiler, "-std=c++17", "-O1", "-pthread", *sources, "-o", str(program)], check=True)
    assert subprocess.run([str(program)], timeout=60, check=False).returncode == 0
