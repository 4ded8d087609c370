"""Real engine processes: several models share the room that there is, and one that sleeps gives its memory back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.served_model import serving, serving_with, write_model
from tests.models.tiny_gguf import write_tiny_lora

CHAT = "/v1/chat/completions"
LONG = "How are you today? " * 12
MIB = 2**20


def ask(url: str, model: str, content: str = "Hello") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
    return httpx.post(url + CHAT, json=body, timeout=110)


def statuses(url: str) -> dict[str, str]:
    return {m["id"]: m["status"]["value"] for m in httpx.get(url + "/v1/models", timeout=60).json()["data"]}


def tree(pid: int) -> list[int]:
    """The process and all below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def engines(pid: int) -> list[int]:
    return [one for one in tree(pid) if b"imp_server.engine" in Path(f"/proc/{one}/cmdline").read_bytes()]


def memory_mib(pid: int) -> float:
    """Of all processes of the server."""
    pages = 0
    for one in tree(pid):
        try:
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def cpu_s(pid: int) -> float:
    """Of the server and of those below it that have ended or run."""
    ticks = 0
    for one in tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def n_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_folder_of_models_just_works(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    data = write_model(tmp_path).read_bytes()
    for name in "abcde":
        (folder / f"{name}.gguf").write_bytes(data)
    (folder / "cut.gguf").write_bytes(data[:5000])
    options = ("--models-dir", str(folder), "--models-max", "2", "--no-router-catalogue")
    with serving_with(*options, "--set", "cpu.pack_cache=false") as (url, pid):
        assert set(statuses(url)) == {*"abcde", "cut"}
        n_processes = []
        for _ in range(2):
            for name in "abcde":
                assert ask(url, name).status_code == 200, name
            assert [name for name, status in statuses(url).items() if status == "loaded"] == ["d", "e"]
            assert len(engines(pid)) == 2
            n_processes.append(len(tree(pid)))
        assert n_processes[1] <= n_processes[0], "what a model brought along goes with it"
        broken = ask(url, "cut")
        assert broken.status_code == 503 and broken.json()["error"]["code"] == "model_load_failed"
        assert "cut.gguf" in broken.text and ask(url, "a").status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "spilled"])
def test_twenty_sleeps_leave_nothing_behind(tmp_path: Path, is_kept: bool) -> None:
    """With a draft model, an adapter, and a prefix cache that is kept, which gives the prompt back, or that has a lower
    tier."""
    model = write_model(tmp_path)
    adapter = write_tiny_lora(tmp_path / "loud.gguf")
    tier = ("--prefix-cache", str(tmp_path / "kept")) if is_kept else ("--kv-cache-host-spill-mib", "32")
    options = ("--draft-model", str(model), "--lora-scaled", f"{adapter}:0.5", *tier, "--kv-cache-size-mib", "64")
    with serving(model, *options) as (url, pid), httpx.Client(base_url=url, timeout=110) as http:
        asleep: list[tuple[float, int, int]] = []
        awake_mib, cached = 0.0, []
        for _ in range(20):
            cached.append(cached_of(ask(url, "m", LONG)))
            awake_mib = max(awake_mib, memory_mib(pid))
            began_s, began_cpu_s = time.monotonic(), cpu_s(pid)
            assert http.post("/admin/suspend").status_code == 200
            took_s = time.monotonic() - began_s
            asleep.append((memory_mib(pid), n_descriptors(pid), len(tree(pid))))
            assert took_s < 1.0 + 0.5 * os.getloadavg()[0], "its memory is to be free within a second"
            assert cpu_s(pid) - began_cpu_s < 1.0, "and that isn't for want of a processor"
            assert http.post("/admin/resume").status_code == 200
        first, last = asleep[2], asleep[-1]
        assert last[1:] == first[1:] and last[0] < first[0] + 8, asleep
        assert awake_mib > max(mib for mib, _, _ in asleep) + 30
        assert cached[0] == 0 and (min(cached[1:]) > 60 if is_kept else max(cached) == 0), cached


def cached_of(reply: httpx.Response) -> int:
    usage: dict[str, Any] = reply.raise_for_status().json()["usage"]
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    return found
