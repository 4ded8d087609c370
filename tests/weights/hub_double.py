"""A Hugging Face hub on loopback that serves files from memory: listing, resolve, ranges, cut connections."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`files`: path -> bytes. `lfs`: paths that have a SHA-256. `cut_after`: path -> bytes sent before the first
    connection is closed. `hold_s`: pause before each file's body. `ranges`: Range headers seen, in order."""

    repo: str
    files: dict[str, bytes]
    lfs: frozenset[str] = frozenset()
    cut_after: dict[str, int] = field(default_factory=dict)
    corrupt: frozenset[str] = frozenset()
    ranges: list[tuple[str, str]] = field(default_factory=list)
    refuse: int = 0
    hold_s: float = 0.0
    busy: int = 0
    busiest: int = 0
    says: dict[str, Any] = field(default_factory=dict)
    """More of what the hub tells about the repository."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def listing(self) -> dict[str, Any]:
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_blob(data)}
            if name in self.lfs:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {"id": self.repo, "modelId": self.repo, "sha": COMMIT, "siblings": siblings, "tags": [], **self.says}


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        if self.hub.refuse or not path.startswith((f"/api/models/{self.hub.repo}", f"/{self.hub.repo}/resolve/")):
            self.reply(self.hub.refuse or 404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        elif path.startswith("/api/models/"):
            self.reply(200, json.dumps(self.hub.listing()).encode(), {"Content-Type": "application/json"}, body)
        else:
            self.file(path.split("/resolve/")[1].partition("/")[2], body)

    def file(self, name: str, body: bool) -> None:
        data = self.hub.files[name]
        if name in self.hub.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        etag = (
            hashlib.sha256(self.hub.files[name]).hexdigest() if name in self.hub.lfs else git_blob(self.hub.files[name])
        )
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").partition("-")[0] or 0) if wanted else 0
        if body:
            self.hub.ranges.append((name, wanted))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        with self.hub.lock:
            self.hub.busy += body
            self.hub.busiest = max(self.hub.busiest, self.hub.busy)
        try:
            time.sleep(self.hub.hold_s if body else 0)
            cut = self.hub.cut_after.pop(name, None) if body else None
            self.reply(206 if start else 200, data[start:], headers, body, cut)
        finally:
            with self.hub.lock:
                self.hub.busy -= body

    def reply(self, status: int, data: bytes, headers: dict[str, str], body: bool, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        self.wfile.write(data[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """The base URL of `hub` while the block runs."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
