"""The page at / over HTTP: its files, its rights, what it may have rendered, and the server without it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from imp_server.ui.files import POLICY, page_files

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import LiveServer, live_server

PAGES = ("/", "/docs")


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx.Client]:
    without = live_server(scripted, ByteText, settings={"server.ui": False})
    with without as live, httpx.Client(base_url=live.url) as http:
        yield http


@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_its_own_modules_and_is_framed_by_nobody(http: httpx.Client, path: str) -> None:
    reply = http.get(path)
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert re.findall(r"<script(.*?)>(.*?)</script>", reply.text) in (
        [(' type="module" src="ui/main.js"', "")],
        [(' type="module" src="ui/docs.js"', "")],
    )
    assert "content-security-policy" not in http.get("/openapi.json").headers


def test_the_policy_is_the_one_that_was_decided() -> None:
    assert POLICY == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


@pytest.mark.parametrize("path", [*PAGES, *(f"/ui/{name}" for name in page_files())])
def test_every_file_is_asked_for_anew_and_sent_once(http: httpx.Client, path: str) -> None:
    first = http.get(path)
    assert first.status_code == 200 and first.headers["cache-control"] == "no-cache"
    again = http.get(path, headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content and again.headers["etag"] == first.headers["etag"]
    assert http.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_the_page_names_files_that_are_there_and_no_others() -> None:
    """Every module is fetched beside the first one, and a name that a module imports is a file."""
    files = page_files()
    texts = {name: file.content.decode() for name, file in files.items()}
    assert not [name for name, text in texts.items() if re.search(r"https?://(?!www\.w3\.org/2000/svg)[\w%]", text)]
    imported = {found for text in texts.values() for found in re.findall(r'(?:from|import\()\s*"\./([\w.]+)"', text)}
    named = {found for text in texts.values() for found in re.findall(r'(?:href|src)="ui/([\w.]+)"', text)}
    assert imported | named <= set(files)
    at_once = set(re.findall(r'href="ui/([\w.]+\.js)"', texts["index.html"])) | {"main.js"}
    later = {"playground.js", "status.js", "docs.js"}
    assert at_once == {name for name in files if name.endswith(".js")} - later


def test_the_page_is_small() -> None:
    sizes = {name: len(file.content) for name, file in page_files().items() if not name.startswith("docs.")}
    assert sum(sizes.values()) < 150_000, sizes


def test_there_is_no_other_file(http: httpx.Client) -> None:
    for name in ("nothing.js", "%2e%2e%2fapi%2fapp.py", "files.py", "static"):
        assert http.get(f"/ui/{name}").status_code == 404


def test_behind_a_prefix() -> None:
    with live_server(scripted, ByteText, settings={"server.api_prefix": "/llm"}) as live:
        assert "ui/main.js" in httpx.get(f"{live.url}/llm/").text
        assert httpx.get(f"{live.url}/llm/ui/main.js").status_code == 200
        assert httpx.get(f"{live.url}/ui/main.js").status_code == 404


def test_without_the_page(plain: httpx.Client) -> None:
    for path in PAGES:
        reply = plain.get(path, headers={"host": "a<script>.localhost"})
        policy = reply.headers["content-security-policy"]
        assert reply.status_code == 200 and "<script" not in reply.text and "script-src" not in policy
        assert "frame-ancestors 'none'" in policy
    assert "/v1/chat/completions" in plain.get("/").text and "/v1/chat/completions" in plain.get("/docs").text
    assert plain.get("/ui/main.js").status_code == 404
    reply = plain.post("/ui/render", json={"blocks": ["x"]})
    assert reply.status_code == 501 and "server.ui" in reply.json()["error"]["message"]


# --- rendering ----------------------------------------------------------------------------------


def test_markdown_becomes_nodes(http: httpx.Client) -> None:
    reply = http.post("/ui/render", json={"blocks": ["a *b* <i>c</i>", "```py\nx = 1\n```"]}).json()
    first, second = reply["blocks"]
    assert reply["ended"] is False
    assert first == [["p", {}, "a ", ["em", {}, "b"], " <i>c</i>"]]
    assert second[0][0] == "pre" and ["span", {"class": "tok-mi"}, "1"] in second[0][2]


def test_what_is_too_much_is_refused(http: httpx.Client) -> None:
    for blocks in (["é" * 40_000], ["x" * 40_000, "x" * 40_000], ["x" * 70_000], [], ["x"] * 257):
        reply = http.post("/ui/render", json={"blocks": blocks})
        assert reply.status_code == 400, len(blocks)
    assert http.post("/ui/render", json={"blocks": ["x" * 65_536]}).status_code == 200


def test_what_takes_too_long_is_ended_and_the_next_is_served(server: LiveServer, http: httpx.Client) -> None:
    before = server.services.renderer.n_killed
    reply = http.post("/ui/render", json={"blocks": ["[" * 60_000, "b"]}).json()
    assert reply == {"blocks": [None, None], "ended": True}
    assert server.services.renderer.n_killed == before + 1
    assert http.post("/ui/render", json={"blocks": ["b"]}).json()["blocks"] == [[["p", {}, "b"]]]


def test_late_blocks_are_left_for_the_next_question(http: httpx.Client) -> None:
    blocks = ["```py\n" + "def f(x): return [x for x in range(10)]\n" * 150 + "```"] * 8
    reply = http.post("/ui/render", json={"blocks": blocks}).json()
    assert reply["ended"] is False and reply["blocks"][0] and reply["blocks"][-1] is None


def test_it_isnt_counted_as_inference_and_takes_no_place() -> None:
    with live_server(scripted, ByteText, settings={"server.max_concurrent": 1}) as live:
        live.on_loop(lambda: setattr(live.services.admission.gate, "n_taken", 1))
        assert httpx.post(f"{live.url}/ui/render", json={"blocks": ["x"]}).status_code == 200
        assert "imp_requests_total 0" in httpx.get(f"{live.url}/metrics").text


def test_it_needs_a_key_and_a_page_of_this_server() -> None:
    with live_server(scripted, ByteText, settings={"server.api_key": ("k",)}) as live:
        body = {"blocks": ["x"]}
        assert httpx.post(f"{live.url}/ui/render", json=body).status_code == 401
        key = {"authorization": "Bearer k"}
        assert httpx.post(f"{live.url}/ui/render", json=body, headers=key).status_code == 200
        other = key | {"origin": "http://elsewhere.example"}
        assert httpx.post(f"{live.url}/ui/render", json=body, headers=other).status_code == 403
