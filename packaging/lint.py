"""What tools say of the files here: kubernetes-validate (PyPI) of the chart and the KServe runtime's pod, shellcheck of
the scripts, systemd-analyze of the unit. A tool that isn't there is named, and no failure.

    python packaging/lint.py      (`make lint-packaging`)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.packaging.test_clusters import CHART, VALUES, rendered

HERE = Path(__file__).resolve().parents[1]
VALUE_SETS: tuple[dict[str, Any], ...] = ({}, {"keySecret": "keys", "flags": ["--threads", "4"], "replicas": 3})


def said(command: list[str]) -> str:
    """What is wrong; empty if nothing is."""
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def manifests(folder: Path) -> list[str]:
    """The chart under two sets of values, and the pod of the runtime, as files for a cluster."""
    paths = []
    for number, changes in enumerate(VALUE_SETS):
        for template in sorted((CHART / "templates").glob("*.yaml")):
            path = folder / f"{number}-{template.name}"
            path.write_text(yaml.safe_dump(rendered(template.read_text(), {**VALUES, **changes})))
            paths.append(str(path))
    runtime = next(yaml.safe_load_all((HERE / "packaging/kserve/imp.yaml").read_text()))
    spec = {"containers": runtime["spec"]["containers"]}
    pod = folder / "runtime.yaml"
    pod.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "imp"}, "spec": spec}))
    return [*paths, str(pod)]


def main() -> int:
    scripts = sorted(str(path.relative_to(HERE)) for path in (HERE / "packaging").rglob("*.sh"))
    beside = Path(sys.executable).with_name("kubernetes-validate")
    with tempfile.TemporaryDirectory() as folder:
        checks = {
            str(beside) if beside.exists() else "kubernetes-validate": ["--strict", *manifests(Path(folder))],
            "shellcheck": scripts,
            "systemd-analyze": ["verify", "packaging/systemd/imp.service"],
        }
        found = []
        for tool, arguments in checks.items():
            if shutil.which(tool) is None:
                print(f"{tool} isn't here")
            elif wrong := said([tool, *arguments]):
                found.append(wrong)
            else:
                print(f"{Path(tool).name}: nothing to say")
    print("\n".join(found), end="")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
