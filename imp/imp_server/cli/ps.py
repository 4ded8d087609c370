"""Say what a running server serves."""

from __future__ import annotations

import json
from typing import Any

import click

from imp_server.cli._chat_server import listed_models
from imp_server.cli._knob_options import loaded_config
from imp_server.cli._terminal import print_table, size_text


@click.command()
@click.option("--url", default="", help="Base URL of the server [the host and port that are configured].")
@click.option("--key", default="", help="API key of that server, sent as a bearer token.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(url: str, key: str, as_json: bool) -> None:
    """Say what a running server serves, imp or another that lists its models under /v1/models."""
    server = loaded_config().config.server
    key = key or next(iter(server.api_key), "")
    listens = next((each for each in server.host if "/" not in each), "")  # not a Unix socket
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(listens, listens)
    scheme = "https" if server.ssl_certfile else "http"
    rows = listed_models(url or f"{scheme}://{host}:{server.port}", key)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        print_table(("NAME", "STATE", "SIZE", "CONTEXT"), [_row(row) for row in rows], frozenset({"SIZE", "CONTEXT"}))
    else:
        click.echo("the server has no model")


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    """Servers other than ours say less."""
    loaded = model.get("loaded")
    meta = model.get("meta") or {}
    size, context = meta.get("size"), meta.get("n_ctx") or model.get("max_model_len")
    return (
        str(model["id"]),
        "" if loaded is None else "loaded" if loaded else "not loaded",
        size_text(size) if isinstance(size, int) else "",
        f"{context:,}" if isinstance(context, int) else "",
    )
