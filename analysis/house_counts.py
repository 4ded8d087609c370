"""How finely the house is cut: files, folders, circles of imports, and the files that one chat request runs through.

    python analysis/house_counts.py [CHECKOUT]

CHECKOUT (this one) may be an old one, so that two can be compared; the request needs its tests/ and what they need. It
is a plain chat of one turn over HTTP, answered by the scripted engine, once everything is warm: what an engine and its
kernels run through isn't in the count.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TRACED = """
import sys, threading
from pathlib import Path
import httpx
from imp_server.engine%(side)s import scripted
from tests.live.toy_server import toy_server

package, seen = str(Path(sys.argv[1]) / "imp" / "imp_server"), set()

def note(frame, event, _):
    if event == "call" and on and frame.f_code.co_filename.startswith(package):
        seen.add(frame.f_code.co_filename)

on = []
threading.setprofile(note)
with toy_server() as server, httpx.Client() as client:
    for turn in range(3):
        server.engine.play(scripted.text_ids("Hello."))
        if turn == 2:
            on.append(True)
        reply = client.post(server.url + "/v1/chat/completions", headers={"authorization": "Bearer k"},
                            json={"model": "toy", "messages": [{"role": "user", "content": "Hi"}]})
        assert reply.status_code == 200, reply.text
    on.clear()
for name in sorted(seen):
    print(name.removeprefix(package + "/"))
"""


def imports(path: Path, package: Path) -> set[str]:
    """The files of the package that the file imports, whether at once or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    places = (package.parent.joinpath(*name.split(".")) for name in found if name.startswith("imp_server."))
    return {str(place.with_suffix(".py")) for place in places if place.with_suffix(".py").is_file()}


def circles(package: Path) -> list[set[str]]:
    """Sets of files that reach each other by imports."""
    graph = {str(path): imports(path, package) for path in package.rglob("*.py")}

    def reached(start: str) -> set[str]:
        found, todo = set[str](), [start]
        while todo:
            for name in graph[todo.pop()] - found:
                found.add(name)
                todo.append(name)
        return found

    reach = {name: reached(name) for name in graph}
    left, found = {name for name in graph if name in reach[name]}, []
    while left:
        name = left.pop()
        circle = {other for other in reach[name] if name in reach[other]}
        left -= circle
        if len(circle) > 1:
            found.append({str(Path(one).relative_to(package)) for one in circle})
    return found


def on_the_way(checkout: Path) -> list[str]:
    """Files that a chat request runs through."""
    client = (checkout / "imp" / "imp_server" / "engine" / "client").is_dir()
    program = TRACED % {"side": ".client" if client else ""}
    done = subprocess.run(
        [sys.executable, "-c", program, str(checkout)],
        cwd=checkout, env={"PYTHONPATH": f"{checkout / 'imp'}:{checkout}", "PATH": ""}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return done.stdout.split()


def main() -> int:
    checkout = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    package = checkout / "imp" / "imp_server"
    files = sorted(package.rglob("*.py"))
    lines = [len(path.read_text().splitlines()) for path in files]
    flat = Counter(str(path.parent.relative_to(package)) for path in files if path.name != "__init__.py")
    crumbs = [path for path, n in zip(files, lines, strict=True) if n < 25 and path.name != "__init__.py"]
    way = on_the_way(checkout)
    print(f"files {len(files)}, lines {sum(lines)}, below 25 lines {len(crumbs)}, longest {max(lines)}")
    print("fullest folders:", ", ".join(f"{name} {n}" for name, n in flat.most_common(5)))
    print("circles of files:", ", ".join(str(len(one)) for one in circles(package)) or "none")
    print(f"files that a chat request runs through: {len(way)}", *way, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
