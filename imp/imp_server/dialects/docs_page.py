"""The contract as one static page, and the front page. No outside assets, no scripts."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from imp_server.core.json_pointer import keys_of

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--accent:#2a7ab0}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{margin-bottom:0}h2{border-bottom:1px solid var(--line);margin-top:2.5rem}
details{border:1px solid var(--line);border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}
summary{cursor:pointer}code,.method{font-family:ui-monospace,monospace;font-size:.92em}
.method{display:inline-block;min-width:4rem;font-weight:600;color:var(--accent)}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-top:1px solid var(--soft)}
nav a{margin-right:1rem}pre{overflow:auto;border:1px solid var(--soft);border-radius:6px;padding:.4rem .8rem}
"""
_ICON = (
    '<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns=%22http%3A//www.w3.org/2000/svg%22 '
    "viewBox=%220 0 32 32%22%3E"
    "%3Cpath fill=%22%232a7ab0%22 d=%22M4 4l7 6h10l7-6v14a12 10 0 0 1-24 0z%22/%3E%3Ccircle cx=%2211%22 cy=%2217%22 "
    'r=%222.5%22 fill=%22white%22/%3E%3Ccircle cx=%2221%22 cy=%2217%22 r=%222.5%22 fill=%22white%22/%3E%3C/svg%3E">'
)
"""Within the page: a browser asks for no further file."""


def front_page(model: str, state: str, host: str, scheme: str = "http") -> str:
    """`host` as the client's browser names this server."""
    url = f"{scheme}://{escape(host[:200])}"
    body = escape('{"model": "%s", "messages": [{"role": "user", "content": "Hello"}]}' % (model or "MODEL"))
    serving = f"serves <code>{escape(model)}</code>, {escape(state)}" if model else "has no model"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>imp</title>'
        f'<meta name="viewport" content="width=device-width">{_ICON}<style>{_STYLE}</style></head><body><h1>imp</h1>'
        f"<p>This server {serving}.</p>"
        f"<p>OpenAI clients: <code>{url}/v1</code><br>Anthropic clients: <code>{url}</code></p>"
        f"<pre><code>curl {url}/v1/chat/completions \\\n  -H 'content-type: application/json' \\\n"
        f"  -d '{body}'</code></pre>"
        f'<p><a href="docs">Every route</a>, <a href="openapi.json">as OpenAPI</a>, <a href="health">health</a></p>'
        f"</body></html>"
    )


def page(document: dict[str, Any]) -> str:
    """`document`: a merged OpenAPI document whose operations carry `x-document`."""
    groups: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if isinstance(operation, dict) and "operationId" in operation:
                name = operation.get("x-document", "other")
                groups.setdefault(name, []).append(_operation(document, method, path, operation))
        if socket := item.get("x-websocket"):
            groups[name].append(_socket(document, path, socket))
    nav = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in groups)
    body = "".join(f'<h2 id="{escape(name)}">{escape(name)}</h2>{"".join(items)}' for name, items in groups.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>imp: API</title>'
        f'<meta name="viewport" content="width=device-width">{_ICON}<style>{_STYLE}</style></head><body><h1>imp</h1>'
        f'<p>Every route this server has, made from its contract (<a href="openapi.json">openapi.json</a>).</p>'
        f"<nav>{nav}</nav>{body}</body></html>"
    )


def _socket(document: dict[str, Any], path: str, socket: dict[str, Any]) -> str:
    """A path that takes WebSocket connections, too."""
    title = f'<span class="method">WS</span> <code>{escape(path)}</code> {escape(socket["summary"])}'
    text = f"<p>{escape(socket['description'])}</p>{_fields(document, socket['message'])}"
    return f"<details><summary>{title}</summary>{text}</details>"


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    parts = []
    if operation.get("description"):
        parts.append(f"<p>{escape(operation['description'])}</p>")
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if schema is not None:
        parts.append(_fields(document, schema))
    parts.append(_example(method, path, operation))
    answers = ", ".join(f"<code>{escape(status)}</code>" for status in operation.get("responses", {}))
    parts.append(f"<p>Answers: {answers}</p>")
    title = f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code> '
    return f"<details><summary>{title}{escape(operation.get('summary', ''))}</summary>{''.join(parts)}</details>"


def _example(method: str, path: str, operation: dict[str, Any]) -> str:
    """As it is typed into a shell; URL stands for the server's address."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    command = f'curl "$URL{path}"' if method == "get" else f'curl -X {method.upper()} "$URL{path}"'
    for example in content.get("examples", {}).values():
        body = json.dumps(example["value"], ensure_ascii=False, indent=1).replace("'", "\\u0027")
        command = f"curl \"$URL{path}\" -H 'content-type: application/json' -d '{body}'"
        break
    return f"<pre><code>{escape(command, quote=False)}</code></pre>"


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> str:
    schemas = [_follow(document, one) for one in (schema, *_follow(document, schema).get("allOf", ()))]
    required = {name for one in schemas for name in one.get("required", ())}
    rows = []
    for name, sub in {name: sub for one in schemas for name, sub in one.get("properties", {}).items()}.items():
        resolved = _follow(document, sub)
        mark = " <b>required</b>" if name in required else ""
        text = escape(sub.get("description") or resolved.get("description", ""))
        rows.append(
            f"<tr><td><code>{escape(name)}</code>{mark}</td><td>{escape(_kind(document, sub))}</td><td>{text}</td></tr>"
        )
    return f"<table><tr><th>Field</th><th>Value</th><th></th></tr>{''.join(rows)}</table>" if rows else ""


def _follow(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while isinstance(schema, dict) and "$ref" in schema:
        node: Any = document
        for key in keys_of(schema["$ref"]):
            node = node[key]
        schema = node
    return schema


def _kind(document: dict[str, Any], schema: dict[str, Any]) -> str:
    schema = _follow(document, schema)
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " | ".join("null" if v is None else str(v) for v in schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return " | ".join(dict.fromkeys(_kind(document, branch) for branch in schema[keyword]))
    kind = schema.get("type", "any")
    text = " | ".join(kind) if isinstance(kind, list) else str(kind)
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return f"{text} ({', '.join(bounds)})" if bounds else text


_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minItems": "at least",
    "maxItems": "at most",
}
