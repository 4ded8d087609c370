"""The Helm chart, the SkyPilot task and the KServe runtime: well-formed, and of flags, routes and variables that exist.

There is no cluster here, and no helm: its template language is read as far as the chart uses it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from imp_server.cli.serve import command as serve

PACKAGING = Path(__file__).parents[2] / "packaging"
CHART = PACKAGING / "helm" / "imp"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
FLAGS = set(re.findall(r"--[a-z-]+", CliRunner().invoke(serve, ["--help-all"]).output))


def looked_up(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def rendered(text: str, values: dict[str, Any]) -> Any:
    """What helm makes of a template of this chart: if, range over a list, values, quote, toYaml."""
    text = re.sub(
        r"\{\{-? if \.Values\.([\w.]+) \}\}(.*?)\{\{- end \}\}",
        lambda m: m[2] if looked_up(values, m[1]) else "",
        text,
        flags=re.S,
    )
    each = re.compile(r"[ ]*\{\{- range \.Values\.([\w.]+) \}\}\n(.*?)[ ]*\{\{- end \}\}\n", re.S)
    text = each.sub(lambda m: "".join(m[2].replace("{{ . | quote }}", f'"{v}"') for v in looked_up(values, m[1])), text)
    text = re.sub(r"\{\{- toYaml \.Values\.([\w.]+).*?\}\}", lambda m: str(looked_up(values, m[1])), text)
    text = re.sub(r"\{\{ \.Values\.([\w.]+) \| quote \}\}", lambda m: f'"{looked_up(values, m[1])}"', text)
    text = re.sub(r"\{\{ \.Values\.([\w.]+) \}\}", lambda m: str(looked_up(values, m[1])), text)
    text = text.replace("{{ .Release.Name }}", "mine")
    assert "{{" not in text, text
    return yaml.safe_load(text)


def flags_exist(arguments: list[str]) -> None:
    assert arguments[0] == "serve"
    for flag in arguments:
        assert not flag.startswith("--") or flag in FLAGS, flag


@pytest.mark.parametrize("changes", [{}, {"keySecret": "keys", "flags": ["--threads", "4"], "replicas": 3}])
def test_the_chart(changes: dict[str, Any]) -> None:
    values = {**VALUES, **changes}
    server = rendered((CHART / "templates" / "server.yaml").read_text(), values)
    service = rendered((CHART / "templates" / "service.yaml").read_text(), values)
    pod = server["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    flags_exist(container["args"])
    assert container["args"][-2:] == changes.get("flags", ["--port", "8080"])
    assert container["image"] == "imp-server:cpu" and server["spec"]["replicas"] == values["replicas"]
    assert [e["name"] for e in container.get("env", [])] == ["IMP_API_KEY"] * bool(values["keySecret"])
    labels = pod["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels and server["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")} == {
        "/health", "/ready",
    }  # fmt: skip
    waits_s = {
        kind: probe["periodSeconds"] * probe["failureThreshold"]
        for kind in ("startup", "liveness")
        for probe in [container[f"{kind}Probe"]]
    }
    assert waits_s["liveness"] >= waits_s["startup"], "a model that is loaded again isn't a reason to kill the pod"
    assert container["resources"] == values["resources"]
    assert [claim["metadata"]["name"] for claim in server["spec"]["volumeClaimTemplates"]] == ["models"]


def test_every_value_of_the_chart_is_used() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name, value in VALUES.items():
        names = [f"{name}.{inner}" for inner in value] if isinstance(value, dict) and name != "resources" else [name]
        assert all(f".Values.{each}" in text for each in names), names
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["apiVersion"] == "v2"


def test_the_skypilot_task() -> None:
    task = yaml.safe_load((PACKAGING / "skypilot" / "imp.yaml").read_text())
    assert {"resources", "setup", "run", "service"} <= set(task)
    flags_exist(re.findall(r"serve|--[a-z-]+", task["run"].split("imp/bin/imp ")[1]))
    assert task["service"]["readiness_probe"]["path"] == "/ready"
    assert all(f"${name}" in task["run"] for name in task["envs"])


def test_the_kserve_runtime() -> None:
    runtime, model = yaml.safe_load_all((PACKAGING / "kserve" / "imp.yaml").read_text())
    (container,) = runtime["spec"]["containers"]
    flags_exist(container["args"])
    assert model["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"]
    formats = {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert model["spec"]["predictor"]["model"]["modelFormat"]["name"] in formats
