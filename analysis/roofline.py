"""Achieved against what the machine allows, as a plot: how near memory's or arithmetic's roof each run is.

    imp bench MODEL --json > cpu.json
    python analysis/roofline.py cpu.json [MORE.json ...] --png roofline.png

A file is what `imp bench --json` writes, or of any device (so are GPU results kept) {"name", "bandwidth_gb_per_s",
"peak_gops", "points": [{"name", "gops", "gb_per_s"}]}. Across: operations per byte of memory that is read; up: 10^9
operations per second. A run's roof is the lower of bandwidth times its operations per byte and the peak. Without
matplotlib (the extra `plots`) there is the table alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Point(NamedTuple):
    name: str
    gops: float
    per_byte: float
    """Operations per byte that is read."""


class Device(NamedTuple):
    name: str
    bandwidth: float
    """10^9 bytes per second."""
    peak: float
    """10^9 operations per second."""
    points: tuple[Point, ...]

    def roof(self, per_byte: float) -> float:
        return min(self.bandwidth * per_byte, self.peak)

    def share(self, point: Point) -> float:
        return point.gops / self.roof(point.per_byte)


def device_of(found: dict[str, Any]) -> Device:
    """Raises ValueError for a file of another kind, or a bench of a backend that doesn't know its bounds."""
    if "points" in found:
        points = (Point(p["name"], p["gops"], p["gops"] / p["gb_per_s"]) for p in found["points"])
        return Device(found["name"], found["bandwidth_gb_per_s"], found["peak_gops"], tuple(points))
    if "results" not in found or not found.get("compute"):
        raise ValueError("neither what `imp bench --json` writes with its bounds, nor points of a device")
    return _of_bench(found)


def _of_bench(found: dict[str, Any]) -> Device:
    runs = {run["scenario"]: run for run in found["results"]}
    prefill = next(name for name in runs if name.startswith("prefill"))
    per_token = found["compute"]["gops"] / runs[prefill]["tokens_per_s"]  # 10^9 operations
    read = {name: run for name, run in runs.items() if run["share_of_bandwidth"]}
    bandwidth = max(run["gb_per_s"] / run["share_of_bandwidth"] for run in read.values())
    points = [
        Point(name, run["tokens_per_s"] * per_token, run["tokens_per_s"] * per_token / run["gb_per_s"])
        for name, run in read.items()
    ]
    n_prompt = int(prefill.split()[-1])  # the weights are read once for all of it, or more often: the least is drawn
    points.append(Point(prefill, found["compute"]["gops"], 1e9 * per_token * n_prompt / found["weight_bytes"]))
    name = f"{found['model']} {found['quantisation']}, {found['backend']}"
    return Device(name, bandwidth, found["compute"]["peak_gops"], tuple(points))


def table(devices: list[Device]) -> str:
    lines = [f"{'RUN':24} {'GOP/S':>10} {'OPS/BYTE':>9} {'ROOF':>10} {'SHARE':>6}"]
    for device in devices:
        lines.append(f"{device.name}: {device.bandwidth:.1f} GB/s, {device.peak:.0f} GOP/s")
        for point in device.points:
            roof = device.roof(point.per_byte)
            numbers = f"{point.gops:10.1f} {point.per_byte:9.1f} {roof:10.1f} {device.share(point):6.0%}"
            lines.append(f"  {point.name:22} {numbers}")
    return "\n".join(lines)


def plot(devices: list[Device], path: Path) -> None:
    """Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=110, layout="constrained")
    axes = figure.subplots()
    everywhere = [point.per_byte for device in devices for point in device.points]
    low, high = min(everywhere) / 2, max(max(everywhere), max(d.peak / d.bandwidth for d in devices)) * 2
    for device in devices:
        ridge = device.peak / device.bandwidth
        across = sorted({low, min(max(ridge, low), high), high})
        (line,) = axes.plot(across, [device.roof(x) for x in across], label=device.name)
        for point in device.points:
            axes.plot(point.per_byte, point.gops, "o", color=line.get_color())
            axes.annotate(f" {point.name} {device.share(point):.0%}", (point.per_byte, point.gops), fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte read", ylabel="10⁹ operations per second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--png", type=Path)
    asked = parser.parse_args(arguments)
    devices = []
    for path in asked.files:
        try:
            devices.append(device_of(json.loads(path.read_text())))
        except (OSError, ValueError, KeyError) as wrong:
            parser.error(f"{path}: {wrong}")
    print(table(devices))
    if asked.png:
        try:
            plot(devices, asked.png)
        except ImportError:
            print("no plot: it needs matplotlib (pip install 'imp-server[plots]')", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
