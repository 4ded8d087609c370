"""Run lm-eval's tasks against a server, or a model that is served for the time of the run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import click

from imp_server.cli._chat_server import listed_models
from imp_server.cli._own_server import served
from imp_server.config import child_environment
from imp_server.core import UserFault

_NO_LM_EVAL = "imp eval needs lm-eval, which isn't installed: pip install 'imp-server[eval]'"


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--url", default="", help="Base URL of a running server, with or without /v1.")
@click.option("--model", default="", help="Name of its model (default: its first); without --url a model to serve.")
@click.option("--key", default="", help="API key, sent as a bearer token.")
@click.option("--tasks", required=True, help="lm-eval's names of tasks, comma-separated.")
@click.option("--limit", type=click.IntRange(1), help="Only so many questions of each task.")
@click.option("--chat", is_flag=True, help="Ask by Chat Completions: for tasks that read written answers only.")
@click.option("--parallel", type=click.IntRange(1), default=4, show_default=True, help="Requests at once.")
@click.argument("further", nargs=-1, type=click.UNPROCESSED)
def command(url: str, model: str, key: str, further: tuple[str, ...], **options: Any) -> int:
    """Run lm-eval's tasks against a server, or a model that is served for the time of the run.

    FURTHER options go to lm-eval as they are, such as --num_fewshot 5 --output_path results. Any server can be asked
    that has /v1/completions with echo and logprobs, and /tokenizer_info, as imp and vLLM do.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise UserFault(_NO_LM_EVAL)
    if url:
        return _run(url, key, model, further, **options)
    if not model:
        raise UserFault("name a server (--url http://127.0.0.1:8080) or a model to serve (--model smollm2)")
    with served(model) as own:
        return _run(own, key, "", further, **options)


def _run(url: str, key: str, model: str, further: Sequence[str], **options: Any) -> int:
    base = url.rstrip("/").removesuffix("/v1")
    asked = lm_eval_arguments(base, chosen(listed_models(base, key), model), **options)
    environment = child_environment(OPENAI_API_KEY=key or "none")  # its client insists on one
    done = subprocess.run(
        [sys.executable, "-m", "imp_server.cli._lm_eval", *asked, *further], env=environment, check=False
    )
    return done.returncode


def chosen(listed: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The entry of /v1/models that is meant. Raises UserFault."""
    if not listed:
        raise UserFault("the server lists no model; is one loaded?")
    found = [entry for entry in listed if entry.get("id") == name] if name else listed
    if not found:
        raise UserFault(f"the server has no model {name}; it has {', '.join(str(e.get('id')) for e in listed)}")
    return found[0]


def lm_eval_arguments(
    base: str, model: dict[str, Any], *, tasks: str, limit: int | None, chat: bool, parallel: int
) -> list[str]:
    """Its command line. Prompts travel as ids of the server's own tokenizer: no second one has to agree with it."""
    kind, path = ("local-chat-completions", "chat/completions") if chat else ("imp-completions", "completions")
    arguments = {"model": model["id"], "base_url": f"{base}/v1/{path}", "num_concurrent": parallel}
    if not chat:
        arguments |= {"tokenizer_backend": "remote", "tokenized_requests": True}
    if isinstance(length := model.get("max_model_len"), int):
        arguments["max_length"] = length
    if any(mark in str(value) for value in arguments.values() for mark in ",="):
        raise UserFault(f"lm-eval takes no name or URL with a comma or '=': {model['id']}; serve the model by an alias")
    spelled = ",".join(f"{name}={value}" for name, value in arguments.items())
    command = ["--model", kind, "--model_args", spelled, "--tasks", tasks, "--batch_size", "1"]
    command += ["--apply_chat_template"] if chat else []
    return command + (["--limit", str(limit)] if limit else [])
