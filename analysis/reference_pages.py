"""The pages that are made of what the code says anyway: routes and fields of spec/, modules of their docstrings.

    python -m analysis.reference_pages      (`make docs`) writes docs/api.md

The page of modules changes with every module, so it is made with the site (site_pages.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parents[1]
SPEC, PACKAGE, DOCS = HERE / "spec", HERE / "imp" / "imp_server", HERE / "docs"
METHODS = ("get", "post", "put", "patch", "delete")
_LONGEST_TYPE = 60

API_HEAD = """# Routes

Every route, its fields and what it is refused for, made from the contracts in `spec/` by `make docs`: the same
documents that requests are validated against. `GET /docs` of a running server has a form for each, `GET /openapi.json`
the contracts whole. Fields that aren't listed are no error, and named in the header `x-imp-ignored-fields`
([clients](clients.md)).
"""
MODULES_HEAD = """# Modules

What each module says of itself, collected with the site. [The map](map.md) says what the packages are for, and where
to begin.
"""


class Contracts:
    """Owner of the documents, read once; follows references between them."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {
            path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(SPEC.glob("*.yaml"))
        }

    def resolve(self, node: Any, document: str) -> tuple[Any, str]:
        """What the node stands for, and the document that its references are relative to."""
        while isinstance(node, dict) and "$ref" in node:
            name, _, place = node["$ref"].partition("#/")
            document = name or document
            node = self.documents[document]
            for part in place.split("/"):
                node = node[part]
        return node, document


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def type_of(contracts: Contracts, node: Any, document: str) -> str:
    """A few words: `integer 0 to 10`, `one of a, b`, the name of a schema that is an object."""
    own, document = contracts.resolve(node, document)
    if isinstance(own, bool):
        return ""
    if "const" in own:
        return f"`{own['const']}`"
    if "enum" in own:
        return "one of " + ", ".join("null" if value is None else f"`{value}`" for value in own["enum"])
    kinds = own.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if not kinds:
        among = [type_of(contracts, each, document) for key in ("anyOf", "oneOf", "allOf") for each in own.get(key, [])]
        said = " or ".join(dict.fromkeys(part for part in among if part))
        return said if len(said) <= _LONGEST_TYPE else "several forms"
    words = []
    for kind in kinds:
        if kind == "array" and "items" in own:
            words.append(f"list of {type_of(contracts, own['items'], document) or 'anything'}")
        elif kind in ("integer", "number"):
            words.append(kind + limits(own))
        else:
            words.append(kind)
    said = " or ".join(words)
    return said if len(said) <= _LONGEST_TYPE else " or ".join(kinds)


def limits(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    high = None if high is not None and abs(high) >= 2**31 - 1 else high
    low = None if low is not None and abs(low) >= 2**31 - 1 else low
    if low is not None and high is not None:
        return f" {low} to {high}"
    return f" from {low}" if low is not None else f" to {high}" if high is not None else ""


def fields(contracts: Contracts, schema: Any, document: str) -> Iterator[str]:
    """Rows of a table; then a line for each schema that the fields are shared with."""
    own, document = contracts.resolve(schema, document)
    own = {} if isinstance(own, bool) else own
    needed = set(own.get("required", []))
    rows = list(own.get("properties", {}).items())
    if rows:
        yield "| field | type | |\n|---|---|---|"
    for name, node in rows:
        described = node.get("description") or contracts.resolve(node, document)[0].get("description", "")
        star = " (required)" if name in needed else ""
        yield f"| `{name}`{star} | {one_line(type_of(contracts, node, document))} | {one_line(described)} |"
    shared = [part["$ref"].rpartition("/")[2] for part in own.get("allOf", []) if "$ref" in part]
    if shared:
        yield "\nAnd those of " + ", ".join(f"[{name}](#{name.lower()})" for name in shared) + "."


def operation(contracts: Contracts, document: str, path: str, method: str, node: dict[str, Any]) -> Iterator[str]:
    yield f"\n### `{method.upper()} {path}`\n\n{one_line(node.get('summary', ''))}\n"
    if "description" in node:
        yield one_line(node["description"]) + "\n"
    for parameter in node.get("parameters", []):
        own, home = contracts.resolve(parameter, document)
        kind = type_of(contracts, own.get("schema", {}), home)
        yield f"* {own['in']} `{own['name']}`: {kind}. {one_line(own.get('description', ''))}"
    content = contracts.resolve(node.get("requestBody", {}), document)[0].get("content", {})
    for media, body in content.items():
        yield f"\nBody, `{media}`:\n" if media != "application/json" else ""
        yield from fields(contracts, body.get("schema", {}), document)
    answers = sorted(node.get("responses", {}))
    good = [code for code in answers if code < "400"]
    for code in good:
        own, home = contracts.resolve(node["responses"][code], document)
        media = ", ".join(f"`{name}`" for name in own.get("content", {}))
        yield f"\n{code}: {one_line(own.get('description', ''))}" + (f" ({media})" if media else "")
    refused = [code for code in answers if code not in good]
    if refused:
        named = ", ".join(f"`{name}`" for name in node.get("x-semantic-errors", []))
        yield f"\nErrors: {', '.join(refused)}" + (f"; by name {named}." if named else ".")


def api_page() -> str:
    contracts = Contracts()
    lines = [API_HEAD]
    shared: dict[str, str] = {}
    for name, document in contracts.documents.items():
        if not document.get("paths"):
            continue
        lines.append(f"\n## {document['info']['title']} (`spec/{name}`)")
        for path, item in document["paths"].items():
            for method in METHODS:
                if method in item:
                    text = "\n".join(operation(contracts, name, path, method, item[method]))
                    lines.append(text)
                    shared |= dict.fromkeys(re.findall(r"\[(\w+)\]\(#\w+\)", text), name)
    lines.append("\n## Shared fields")
    done: set[str] = set()
    while waiting := sorted(shared.keys() - done):
        for schema in waiting:
            done.add(schema)
            home = next(
                n for n, d in contracts.documents.items() if schema in d.get("components", {}).get("schemas", {})
            )
            text = "\n".join(fields(contracts, {"$ref": f"{home}#/components/schemas/{schema}"}, home))
            lines.append(f"\n### {schema}\n\n{text}")
            shared |= dict.fromkeys(re.findall(r"\[(\w+)\]\(#\w+\)", text), home)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def first_sentence(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return one_line(said.partition("\n\n")[0])


def modules_page() -> str:
    lines = [MODULES_HEAD]
    folders = sorted({path.parent for path in PACKAGE.rglob("*.py")})
    for folder in folders:
        modules = [(path, first_sentence(path)) for path in sorted(folder.glob("*.py"))]
        rows = [f"| `{path.name}` | {said} |" for path, said in modules if said and path.name != "__init__.py"]
        own = next((said for path, said in modules if path.name == "__init__.py"), "")
        if rows or own:
            title = folder.relative_to(PACKAGE.parent).as_posix()
            lines.append(f"\n## `{title}/`\n\n{own}\n" if own else f"\n## `{title}/`\n")
            lines += ["| module | |\n|---|---|", *rows] if rows else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def main() -> None:
    (DOCS / "api.md").write_text(api_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
