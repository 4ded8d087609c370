"""A small stand-in for the Hugging Face hub on loopback: repositories are folders of files."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0" * 40


class Hub:
    """Owner of the server; `url` is what HF_ENDPOINT is to be."""

    def __init__(self, folder: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(folder))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(folder: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/.+)?", path):
                self._describe(found[1])
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self._send(folder / found[1] / found[2])
            else:
                self._refuse()

        do_HEAD = do_GET  # noqa: N815 (the library's name)

        def _describe(self, repo: str) -> None:
            files = sorted(path for path in (folder / repo).rglob("*") if path.is_file())
            if not files:
                self._refuse()
                return
            siblings = [_sibling(file, str(file.relative_to(folder / repo))) for file in files]
            body: dict[str, Any] = {"id": repo, "sha": COMMIT, "siblings": siblings}
            self._reply(200, json.dumps(body).encode(), "application/json")

        def _send(self, file: Path) -> None:
            if not file.is_file():
                self._refuse()
                return
            data = file.read_bytes()
            start = int((self.headers.get("range") or "bytes=0-").partition("=")[2].split("-")[0] or 0)
            self._reply(206 if start else 200, data[start:], "application/octet-stream")

        def _refuse(self) -> None:
            self._reply(404, b"{}", "application/json", {"x-error-code": "RepoNotFound"})

        def _reply(self, status: int, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"content-type": kind, "content-length": str(len(body)), **(more or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    return Handler


def _sibling(file: Path, name: str) -> dict[str, Any]:
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return {"rfilename": name, "size": len(data), "lfs": {"sha256": digest, "size": len(data), "pointerSize": 130}}
