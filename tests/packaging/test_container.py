"""The image's entry point with each kind of argument list, and the service's files."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import yaml
from imp_server.api.service_manager import READY, tell_service_manager

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "packaging" / "container" / "entrypoint.sh"
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Programs that print how they were called."""
    for name in ("imp", "imp-server", "imp-llama-server", "imp-cli", "bash"):
        path = tmp_path / name
        path.write_text('#!/bin/sh\necho "${0##*/}" "$@"\n')
        path.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "arguments,called",
    [
        ([], "imp serve"),
        (["--port", "9000"], "imp serve --port 9000"),
        (["imp-server", "--host", "0.0.0.0", "--model", "/models/X"], "imp-server --host 0.0.0.0 --model /models/X"),
        (["llama-server", "-m", "/models/X", "-c", "4096"], "imp-llama-server -m /models/X -c 4096"),
        (["imp-cli", "--prompt", "two words"], "imp-cli --prompt two words"),
        (["imp", "doctor"], "imp doctor"),
        (["serve", "--model", "x"], "imp serve --model x"),
        (["doctor"], "imp doctor"),
        (["bash", "-l"], "bash -l"),
    ],
)
def test_argument_lists(arguments: list[str], called: str, programs: Path) -> None:
    path = f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin"
    done = subprocess.run([str(ENTRY), *arguments], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == called


def test_the_image() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.M)
    assert stages == ["build", "base", "cuda", "cpu"]
    for stage in ("cuda", "cpu"):
        assert "USER imp" in DOCKERFILE.partition(f"AS {stage}\n")[2].partition("\nFROM")[0]
    assert "HEALTHCHECK" in DOCKERFILE and "VOLUME /models" in DOCKERFILE
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.M)
    assert copied and all((ROOT / path).exists() for path in copied)


def test_compose() -> None:
    services = yaml.safe_load((ROOT / "packaging/compose/compose.yaml").read_text())["services"]
    assert services["imp"]["build"]["target"] == "cpu"
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"])
    assert (ROOT / "packaging/compose/prometheus.yml").exists()


def test_the_unit() -> None:
    unit = configparser.RawConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read(ROOT / "packaging/systemd/imp.service")
    assert unit["Service"]["Type"] == "notify" and unit["Service"]["DynamicUser"] == "yes"
    if (check := shutil.which("systemd-analyze")) is not None:
        done = subprocess.run(
            [check, "verify", str(ROOT / "packaging/systemd/imp.service")], capture_output=True, text=True
        )
        assert "imp.service:" not in done.stderr, done.stderr


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"@imp-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0", 1) if abstract else address)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        tell_service_manager(READY)
        assert manager.recv(100) == b"READY=1"


def test_a_manager_that_is_gone_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    tell_service_manager(READY)
    monkeypatch.delenv("NOTIFY_SOCKET")
    tell_service_manager(READY)
