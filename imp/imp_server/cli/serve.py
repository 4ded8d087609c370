"""Serve a model over HTTP."""

from __future__ import annotations

import logging
import socket
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from imp_server import __version__
from imp_server.cli._completion import runnable_names
from imp_server.cli._knob_options import KnobCommand, with_config, with_model
from imp_server.cli._launch import Located, loading_progress, locate
from imp_server.config import Config
from imp_server.config.load import Loaded
from imp_server.config.prediction import for_predictions
from imp_server.config.presets import serves_several
from imp_server.core import readable
from imp_server.logs import is_json, set_up_logging, tell, tell_json

if TYPE_CHECKING:
    from imp_server.api.server import Announce, Sockets


@click.command(cls=KnobCommand, example="imp serve smollm2 --port 9000 --max-tokens 500")
@click.argument("model", required=False, shell_complete=runnable_names)
@click.option("--open", "opens_page", is_flag=True, help="Open the page in a browser once requests are taken.")
@with_config()
def command(loaded: Loaded, model: str | None, opens_page: bool) -> None:
    """Serve MODEL over HTTP until SIGINT or SIGTERM.

    MODEL is a known name (`imp ls --known`), a file, a folder or hf:org/repo[:file]; without it the small default
    model is served, and fetched first if it isn't here. `--model none` starts without one. With --models-dir or
    --models-preset, and without MODEL, all models found there are served, each loaded when it is asked for.
    """
    run_server(loaded, model, opens_page=opens_page)


def run_server(loaded: Loaded, model: str | None = None, *, opens_page: bool = False) -> None:
    """Until SIGINT or SIGTERM."""
    from imp_server.api.server import bind, serve
    from imp_server.grammar.machines.abi import grammar_library

    grammar_library()  # of another version, it would end each process that checks a grammar
    loaded = replace(loaded, config=for_predictions(loaded.config))
    announce = partial(_announce, prefix=loaded.config.server.api_prefix, opens_page=opens_page)
    if serves_several(loaded.config, model):
        _serve_several(loaded, announce)
        return
    config = with_model(loaded, model)
    set_up_logging(config.log)
    sockets = bind(config.server)  # before anything is loaded: a taken port fails at once
    _say(f"imp {__version__}")
    for warning in warnings(config):
        tell(f"imp: {warning}", logging.WARNING)
    located = locate(config)
    if located is None:
        _say("No model: requests that need one are answered with 503")
        serve(config, [], sockets, announce)
        return
    _say(f"Loading model {located.model_id}\n{readable(located.path)}")
    _say(_limits(config))
    _serve_model(config, located, sockets, announce)


def _serve_several(loaded: Loaded, announce: Announce) -> None:
    from imp_server.api.server import bind, serve
    from imp_server.api.services import new_workers
    from imp_server.cli._several_models import DiskCatalogue

    config = loaded.config
    set_up_logging(config.log)
    sockets = bind(config.server)
    _say(f"imp {__version__}")
    for warning in warnings(config):
        tell(f"imp: {warning}", logging.WARNING)
    workers = new_workers()
    catalogue = DiskCatalogue(loaded, workers)
    hosts = catalogue.hosts()
    _say("Models: " + (", ".join(host.id for host in hosts) or "none yet"))
    for host in hosts:
        if host.broken:
            tell(f"imp: model {host.id} can't be served: {host.broken}", logging.WARNING)
    room = catalogue.room
    at_once = f"{room.n_models} at once" if room.n_models else "any number at once"
    _say(f"Loaded when they are asked for, {at_once}, in {room.n_bytes >> 20} MiB of memory\n{_limits(config)}")
    serve(config, [], sockets, announce, workers, catalogue)


def warnings(config: Config) -> Iterator[str]:
    """What is allowed, but seldom meant."""
    from imp_server.api.hosts import is_loopback
    from imp_server.api.server import is_path

    if config.reasoning.think_budget >= 1 and config.server.habits != "llama-server":  # which is its habit
        yield "--think-budget 1 lets thinking take all of max_tokens: answers may never begin"
    server = config.server
    open_to = [host for host in server.host if not (is_path(host) or is_loopback(host))]
    if open_to and not any(server.api_key) and not server.api_key_file:
        yield (
            f"--host {','.join(open_to)} lets everybody who reaches this machine use the server: it asks for no key; "
            "--api-key KEY sets one"
        )


def _serve_model(config: Config, located: Located, sockets: Sockets, announce: Announce) -> None:
    from imp_server.api.model_host import ModelHost
    from imp_server.api.model_text_side import ModelTextSide
    from imp_server.api.server import serve
    from imp_server.api.services import new_workers
    from imp_server.engine.client.process import ProcessEngine

    with ExitStack() as bar:
        on_progress = bar.enter_context(loading_progress())

        def announced(line: str) -> None:
            bar.close()
            announce(line)

        client = ProcessEngine(located.path, located.model_id, config)
        workers = new_workers()

        def load_text() -> ModelTextSide:
            return ModelTextSide.load(located.path, config, workers)

        host = ModelHost(
            located.model_id, client, load_text, config, on_progress, aliases=located.aliases, tags=config.model.tags
        )
        serve(config, [host], sockets, announced, workers)


def _say(line: str) -> None:
    """On stdout, flushed, as programs wait for these lines on a pipe; where the log is JSON, in it."""
    for each in line.splitlines() if is_json() else ():
        tell_json(each)
    if not is_json():
        print(line, flush=True)


def _announce(line: str, *, prefix: str = "", opens_page: bool = False) -> None:
    """0.0.0.0 is no address that clients could be given, so they are told this machine's own."""
    _say(line)
    listens = line.rpartition(" ")[2]
    end = f"/{prefix.strip('/')}".rstrip("/")
    here, elsewhere = addresses(listens)
    if elsewhere:
        _say(f"On this machine:   {here}\nFrom others:       {elsewhere}")
    if line.startswith("Also"):
        return
    url = (elsewhere or here) + end
    if not url.startswith("http"):  # a Unix socket
        return
    _say(f"In a browser:      {url}/\nOpenAI clients:    {url}/v1\nAnthropic clients: {url}")
    _say(f"Every route:       {url}/docs")
    if opens_page:
        _open_page(f"{here}{end}/")


def _open_page(url: str) -> None:
    """Beside the event loop: a browser for terminals is waited for until it is closed."""
    threading.Thread(target=webbrowser.open, args=(url,), name="imp-browser", daemon=True).start()


def addresses(url: str) -> tuple[str, str]:
    """Where a server that listens on `url` is reached from this machine, and from others if that is known to differ."""
    for every, loopback, family, far in _EVERY:
        if f"//{every}:" in url:
            own = _own_address(family, far)
            shown = f"[{own}]" if ":" in own else own
            return url.replace(every, loopback), url.replace(every, shown) if own else ""
    return url, ""


_EVERY = (
    ("0.0.0.0", "127.0.0.1", socket.AF_INET, "198.51.100.1"),
    ("[::]", "[::1]", socket.AF_INET6, "2001:db8::1"),
)
"""Every interface's address, loopback, and an address of documentation, which lies outside."""


def _own_address(family: socket.AddressFamily, far: str) -> str:
    """The address that this machine has towards `far`; "" without one. Nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


_ANY_NUMBER = 1_000_000_000
"""Of tokens: more than any context has."""


def _limits(config: Config) -> str:
    server = config.server
    concurrent = f"{server.max_concurrent} requests at once" if server.max_concurrent else "any number of requests"
    timeout = f"{server.request_timeout_s:g} s each" if server.request_timeout_s else "no timeout"
    context = f", context {config.model.max_seq_len}" if config.model.max_seq_len else ""
    tokens = f"{server.max_tokens} tokens" if server.max_tokens < _ANY_NUMBER else "any number of tokens"
    return f"Limits: {tokens} per answer unless asked, {concurrent}, {timeout}{context}"
