"""The degeneration suite's run of a reference engine: transformers on the same weights, behind a small chat server.

    python analysis/degen_baseline.py MODEL.gguf|FOLDER OUT.json [--quick] [--threads N] [--only CATEGORIES]

Serves the model by `transformers` (float32, its own template and sampler; no constraints, no tools; a GGUF file needs
the extra `oracle`) on a free port of this machine, runs `imp degen --corpus` against it, and keeps the verdicts: what
fails there is the model's own weakness. With llama.cpp's server as the reference no command of ours is needed:

    imp degen --url URL --corpus --write-baseline OUT.json "llama.cpp VERSION"
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "imp"))

from imp_server.degeneration.main import main as degen

UNSUPPORTED = ("tools", "response_format", "mirostat", "thinking")


class Reference:
    """Owner of the model; one answer at a time."""

    def __init__(self, model: Path) -> None:
        place = {"gguf_file": model.name} if model.is_file() else {}
        folder = str(model.parent if model.is_file() else model)
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **place)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **place)
        self._lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> tuple[str, str]:
        """The text and why it ended."""
        prompt = self._tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        limit = int(body.get("max_tokens") or 256)
        temperature = float(body.get("temperature") or 0.0)
        decoding: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            top_k = int(body.get("top_k") or 0)
            decoding = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": 1.0}
        with self._lock, torch.inference_mode():
            torch.manual_seed(int(body.get("seed") or 0))
            ids = self._model.generate(**prompt, max_new_tokens=limit, **decoding)
        made = ids[0, prompt["input_ids"].shape[1] :]
        ended = len(made) < limit or int(made[-1]) in _ends(self._model)
        return self._tokenizer.decode(made, skip_special_tokens=True), "stop" if ended else "length"


def _ends(model: Any) -> set[int]:
    ends = model.generation_config.eos_token_id
    return set(ends) if isinstance(ends, list) else {ends}


class Handler(BaseHTTPRequestHandler):
    reference: Reference

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, json.dumps({"data": [{"id": "reference"}]}).encode(), "application/json")
        else:
            self._send(404, b"{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            self._send(404, b"{}", "application/json")
        elif any(name in body for name in UNSUPPORTED):
            self._send(501, b'{"error": "not part of the reference"}', "application/json")
        else:
            text, finish = self.reference.answer(body)
            if body.get("stream"):
                chunk = {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}
                self._send(200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")
            else:
                choice = {"message": {"content": text}, "finish_reason": finish}
                self._send(200, json.dumps({"choices": [choice]}).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    Handler.reference = Reference(options.model)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    engine = f"transformers {transformers.__version__}"
    arguments = ["--url", f"http://127.0.0.1:{server.server_address[1]}", "--corpus", "--timeout", "900"]
    arguments += ["--write-baseline", str(options.out), engine, "--only", options.only]
    code = degen(arguments + ["--quick"] * options.quick)
    server.shutdown()
    return 0 if code in (0, 1) else code


if __name__ == "__main__":
    sys.exit(main())
