"""docs/map.md has a line for every package and every kernel, and no page names a file that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from imp_server.config import Config
from imp_server.config.knobs import knobs
from imp_server.config.names import NOT_YET

ROOT = Path(__file__).resolve().parent.parent

MAP = (ROOT / "docs" / "map.md").read_text()
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
STANDS_FOR_MANY = re.compile(r"[A-Z]")
"""As in `text/tools/NAME.py`."""
PROGRAMS = {"llama.cpp"}
QUESTIONS = {
    "how long an idle model stays in memory": "api/router/residency.py",
    "how large a body may be": "api/body.py",
    "the rates at which a key may ask": "api/admission/rates.py",
    "what a metric measures": "api/reports/measures.py",
    "how long the sessions of streams that survive their client are kept": "api/resumable/sessions.py",
    "what events of Anthropic's dialect hold": "dialects/anthropic/events.py",
    "which HTML elements an answer may become": "ui/allowed.py",
    "how Qwen's calls in xml are read": "text/tools/qwen_xml.py",
    "when thinking is closed by force": "plan_walk/walker.py",
    "how a new kind of cutting text before BPE is added": "vocab/pre_kinds.py",
    "how lookarounds in a regex are compiled": "grammar/languages/regex/lookarounds.py",
    "which exit code a damaged file has, among the errors": "core/errors.py",
    "that a prompt longer than the context is refused": "engine/acceptance.py",
    "how soon an engine's process starts again": "engine/client/process.py",
    "which rows run ahead": "engine/ahead.py",
    "how much pins may hold": "schedule/pins.py",
    "who wins a tie at temperature 0": "decode/sampling.py",
    "how many threads a step uses": "backends/cpu/thread_choice.py",
    "how yarn is read from a config.json": "models/checkpoint_rope.py",
    "how a model is fetched from a hub": "weights/pull_hub.py",
}
"""Where would I change it? Each file has to be found by the map: named, or by a word of the question in its folder."""


def section(title: str) -> str:
    return MAP.split(f"## {title}", 1)[1].split("\n## ", 1)[0]


def test_every_package_has_its_line() -> None:
    package = ROOT / "imp" / "imp_server"
    real = {f"{p.name}/" for p in package.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    real |= {p.name for p in package.glob("*.py") if p.name not in {"__init__.py", "__main__.py"}}
    told = set(re.findall(r"^\* `([\w/.]+)`", section("Packages"), re.MULTILINE))
    assert told == real


def test_every_kernel_is_named() -> None:
    """A file of variants (tiles_q4.cpp) goes with what it varies."""
    kernels = ROOT / "kernels" / "cpu"
    real = {str(p.relative_to(kernels).with_suffix("")) for p in kernels.rglob("*") if p.suffix in {".h", ".cpp"}}
    told = set(re.findall(r"`((?:engine|grammar)/\w+)\.(?:h|cpp)`", section("The kernels")))
    assert {name for name in real if not any(name == one or name.startswith(f"{one}_") for one in told)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_pages_name_are_there(page: Path) -> None:
    named = set(re.findall(r"[\w/]+\.(?:py|h|cpp)\b", page.read_text())) - PROGRAMS
    files = [
        f"/{path.relative_to(ROOT)}"
        for top in ("imp", "tests", "analysis", "conformance", "kernels", "packaging")
        for path in (ROOT / top).rglob("*")
        if path.suffix in {".py", ".h", ".cpp"}
    ]
    files.append("/build_native.py")
    gone = {
        name for name in named if not STANDS_FOR_MANY.search(name) and not any(f.endswith(f"/{name}") for f in files)
    }
    assert not gone


def test_what_carries_a_request_is_where_the_map_says() -> None:
    """At most twelve on the way from the bytes to the kernels; whoever adds one takes one away."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `([\w/]+\.py)` \|", section("What carries a request"), re.MULTILINE)
    assert 10 < len(rows) <= 12
    for names, file in rows:
        text = (ROOT / "imp" / "imp_server" / file).read_text()
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^class {name}\b", text, re.MULTILINE), f"{file} has no {name}"


def test_what_waits_to_be_used_waits() -> None:
    """A knob without effect is listed; one that the list names is there, and its help says that it waits."""
    listed = set(re.findall(r"`(\w+\.\w+)`", section("What waits to be used")))
    idle = {key for key in NOT_YET if not key.startswith("cuda.")}
    known = knobs()
    told = {key for key in listed if key in known}
    assert idle <= told
    assert not {key for key in listed - told if key.split(".")[0] in Config.__struct_fields__}
    for key in told - idle - {"speculative.drafters"}:
        assert re.search(r"yet|so far|such layers", known[key].help), f"{key} doesn't say that it waits"


def test_the_files_to_begin_with_are_there() -> None:
    text = (ROOT / "docs" / "map.md").read_text().partition("## Where to look")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.(?:py|cpp))`", text)
    assert len(named) > 20
    assert [n for n in named if not (ROOT / n).is_file() and not (ROOT / "imp" / "imp_server" / n).is_file()] == []


@pytest.mark.parametrize(("question", "file"), QUESTIONS.items(), ids=QUESTIONS.values())
def test_a_fresh_reader_finds_the_file(question: str, file: str) -> None:
    path = Path(file)
    assert (ROOT / "imp" / "imp_server" / path).is_file()
    if f"`{file}`" in MAP:
        return
    inside = [one.parent.name + "/" for one in (path, *path.parents[:-2])]
    assert any(f"`{name}`" in MAP or f"/{name}`" in MAP or name in MAP for name in inside), "its folder is nowhere"
    words = {word.lower() for word in re.findall(r"\w{3,}", question)}
    assert any(part in words for part in path.stem.split("_")), "no word leads to its name"
