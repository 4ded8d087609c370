"""What this machine has: cores and quota, read bandwidth, GPUs. Everything degrades to 'unknown'."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imp_server.backends.cpu.threads import affinity, default_threads, quota_cores

BANDWIDTH_BUFFER_BYTES = 256 << 20
BANDWIDTH_SECONDS = 0.6


@dataclass(frozen=True, slots=True)
class Cores:
    """`quota`: CPUs that the cgroup grants; infinite without a limit. `threads`: what the cpu backend takes of them."""

    logical: int
    usable: int
    quota: float
    threads: int


def cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> Cores:
    return Cores(os.cpu_count() or 1, len(affinity()), quota_cores(), default_threads())


def read_bandwidth(threads: int, seconds: float | None = None) -> float:
    """Bytes per second that `threads` threads read from a buffer too large for caches; the best of the passes."""
    import numpy as np

    buffer = np.ones(BANDWIDTH_BUFFER_BYTES // 8, dtype=np.uint64)
    pieces = np.array_split(buffer, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        until = time.perf_counter() + (BANDWIDTH_SECONDS if seconds is None else seconds)
        while time.perf_counter() < until or not best:
            started = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, pieces))
            best = max(best, buffer.nbytes / (time.perf_counter() - started))
    return best


def gpus() -> list[str]:
    """One line per NVIDIA GPU, by its own tool; importing torch for this would take seconds."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def port_is_free(host: str, port: int) -> str:
    """ "" if we could listen there, else why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
