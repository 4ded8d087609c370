"""The command against a small server of the test's own: exit codes, filters, reports."""

from __future__ import annotations

import json
import re
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from imp_server.cli.conformance import command
from imp_server.core import ConfigError

GOOD = {"id": "m", "object": "model", "created": 1, "owned_by": "me"}


class _Models(BaseHTTPRequestHandler):
    """Knows /v1/models and nothing else."""

    models: tuple[dict[str, object], ...] = (GOOD,)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/v1/models":
            self._answer(200, {"object": "list", "data": list(self.models)})
        elif path == "/v1/models/m":
            self._answer(200, self.models[0])
        else:
            self._answer(404, {"error": {"message": "no", "type": "t", "param": None, "code": "model_not_found"}})

    do_POST = do_HEAD = do_OPTIONS = do_DELETE = do_GET  # noqa: N815

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if self.command != "HEAD" else b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Broken(_Models):
    models = ({"id": "m", "object": "<b>&\x01", "created": "now"},)


def _serve(handler: type[_Models]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def good() -> Iterator[str]:
    yield from _serve(_Models)


@pytest.fixture
def broken() -> Iterator[str]:
    yield from _serve(_Broken)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), standalone_mode=False)


def test_a_server_of_one_route_claims_one_dialect(good: str) -> None:
    result = run("--url", good)
    assert result.return_value == 0, result.output
    assert re.search(r"openai-models +5/5 +0/0 +0 +1", result.output)
    assert re.search(r"anthropic-messages +0/0 +0/0 +0 +\d\d", result.output)


def test_a_failed_must_is_exit_code_one_and_in_every_report(broken: str, tmp_path: Path) -> None:
    paths = {kind: tmp_path / kind for kind in ("json", "junit", "html")}
    options = [f"--{kind}={path}" for kind, path in paths.items()]
    result = run("--url", broken, "--dialect", "openai-models", *options)
    assert result.return_value == 1
    assert "MUST openai-models/list/1" in result.output
    card = json.loads(paths["json"].read_text())
    verdicts = {case["id"]: case["verdict"] for case in card["cases"]}
    assert verdicts["openai-models/list/1"] == "failed" and verdicts["openai-models/list/6"] == "not claimed"
    suite = ElementTree.parse(paths["junit"]).getroot()
    assert suite.get("failures") == str(len(suite.findall("testcase/failure"))) != "0"
    page = paths["html"].read_text()
    assert "&lt;b&gt;" in page and "<b>&" not in page
    assert not re.search(r"""(?:src|href)=['"]?[^#'"]|@import|url\(""", page), "the page needs nothing from outside"


def test_known_failures_are_reported_apart(broken: str, tmp_path: Path) -> None:
    known = tmp_path / "known.yaml"
    known.write_text("".join(f"- {{id: openai-models/list/{n}, reason: old}}\n" for n in range(1, 6)))
    result = run("--url", broken, "--only", "openai-models", "--known-failures", str(known), "--json")
    assert result.return_value == 0
    case = json.loads(result.stdout)["cases"][0]
    assert case["verdict"] == "known failure" and case["detail"].startswith("old: ")


def test_filters(good: str) -> None:
    result = run("--url", good, "--only", "openai-models/list/1,openai-models/list/2", "--json")
    assert [case["id"] for case in json.loads(result.stdout)["cases"]] == [f"openai-models/list/{n}" for n in (1, 2)]
    for wrong in (["--dialect", "nope"], ["--only", "nope/x/1"], ["--require", "models,nope"]):
        with pytest.raises(ConfigError, match="nope"):
            CliRunner().invoke(command, ["--url", good, *wrong], standalone_mode=False, catch_exceptions=False)


def test_a_server_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"can't be reached.*--url"):
        CliRunner().invoke(command, ["--url", "http://127.0.0.1:9"], standalone_mode=False, catch_exceptions=False)


def test_what_is_required_must_be_offered(good: str) -> None:
    models = ("--url", f"{good}/v1", "--only", "openai-models")
    assert run(*models, "--require", "models").return_value == 0
    result = run(*models, "--require", "models,tools,chat")
    assert result.return_value == 1
    assert "not offered for the model m: chat, tools" in result.stderr


def test_what_would_fail_at_the_end_fails_at_once(good: str, tmp_path: Path) -> None:
    known = tmp_path / "known.yaml"
    known.write_text("- {id: openai-models/list/999, reason: old}")
    wrong = (["--html", "/nowhere/at/all.html"], ["--json", "/nowhere/x.json"], ["--known-failures", str(known)])
    for arguments in wrong:
        with pytest.raises(ConfigError, match=r"/nowhere|list/999"):
            CliRunner().invoke(command, ["--url", good, *arguments], standalone_mode=False, catch_exceptions=False)


def test_a_piped_run_says_how_far_it_is(good: str) -> None:
    result = run("--url", good, "--only", "openai-models", "--json")
    lines = result.stderr.splitlines()
    assert 5 <= len(lines) <= 11 and re.fullmatch(r"\d+ of \d+ cases: openai-models/\S+", lines[0])
    first, last = (line.split()[:3:2] for line in (lines[0], lines[-1]))
    assert int(first[0]) < int(last[0]) == int(last[1])
    json.loads(result.stdout)
