"""analysis/roofline.py: where runs stand below their roofs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def roofline(repo_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("roofline", repo_root / "analysis" / "roofline.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bench() -> dict[str, Any]:
    """A model of 0.1 GOP a token in 50 MB: decode at half of 20 GB/s, a prefill at half of the peak."""
    run = {"low": 0, "high": 0, "host_us_per_step": 0, "n_drafted": 0, "n_accepted": 0}
    return {
        "model": "m", "quantisation": "Q4_K", "backend": "cpu (avx2)", "weight_bytes": 50_000_000,
        "compute": {"gops": 100.0, "ceiling_gops": 150.0, "peak_gops": 200.0},
        "results": [
            run | {"scenario": "decode", "tokens_per_s": 200.0, "gb_per_s": 10.0, "share_of_bandwidth": 0.5},
            run | {"scenario": "prefill 512", "tokens_per_s": 1000.0, "gb_per_s": 0.0, "share_of_bandwidth": 0.0},
        ],
    }  # fmt: skip


def test_a_bench(roofline: ModuleType) -> None:
    device = roofline.device_of(bench())
    assert (device.bandwidth, device.peak) == (20.0, 200.0)
    decode, prefill = device.points
    assert (decode.gops, decode.per_byte) == (pytest.approx(20.0), pytest.approx(2.0))
    assert device.share(decode) == pytest.approx(0.5)
    assert prefill.per_byte == pytest.approx(1024.0) and device.share(prefill) == pytest.approx(0.5)


def test_points_of_any_device_and_what_is_neither(roofline: ModuleType) -> None:
    points = [{"name": "decode", "gops": 1000.0, "gb_per_s": 500.0}]
    device = roofline.device_of({"name": "GPU", "bandwidth_gb_per_s": 1000, "peak_gops": 90_000, "points": points})
    assert device.share(device.points[0]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="neither"):
        roofline.device_of({**bench(), "compute": None})


def test_the_command(roofline: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(bench()))
    has_plots = importlib.util.find_spec("matplotlib") is not None
    assert roofline.main([str(path), "--png", str(tmp_path / "roof.png")]) == int(not has_plots)
    told = capsys.readouterr().out
    assert "20.0 GB/s, 200 GOP/s" in told and "50%" in told
    assert (tmp_path / "roof.png").exists() == has_plots
