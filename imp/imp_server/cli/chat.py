"""Talk to a model in the terminal."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from imp_server.cli._chat_answer import LocalModel
from imp_server.cli._chat_loop import ChatLoop
from imp_server.cli._chat_prompt import read_message, set_up_history
from imp_server.cli._chat_server import ServerModel
from imp_server.cli._completion import runnable_names
from imp_server.cli._conversation import Conversation
from imp_server.cli._exit_codes import EXIT_CANCELLED
from imp_server.cli._knob_options import ENGINE_SECTIONS, KnobCommand, with_config, with_model
from imp_server.cli._launch import Located, loading_progress, locate
from imp_server.config import Config, imp_home
from imp_server.config.load import Loaded
from imp_server.core import ConfigError, SamplingIntent
from imp_server.engine.messages import ModelInfo
from imp_server.logs import set_up_logging


@click.command(cls=KnobCommand, example="imp chat smollm2 --temperature 0.3")
@click.argument("model", required=False, shell_complete=runnable_names)
@click.argument("words", nargs=-1)
@click.option("--system", default="", metavar="TEXT", help="System message.")
@click.option("--prompt", default="", metavar="TEXT", help="Answer this and leave (also: text on standard input).")
@click.option("--max-tokens", type=click.IntRange(1), default=None, metavar="N", help="Longest answer in tokens.")
@click.option("--temperature", type=click.FloatRange(0), default=None, metavar="X", help="0 = always the likeliest.")
@click.option("--top-p", type=click.FloatRange(0, 1), default=None, metavar="X", help="Nucleus sampling.")
@click.option("--top-k", type=click.IntRange(0), default=None, metavar="N", help="Best tokens to choose from.")
@click.option("--seed", type=int, default=None, metavar="N", help="The same seed gives the same answer.")
@click.option("--markdown/--no-markdown", default=True, help="Render Markdown on a terminal [on].")
@click.option("--url", default="", help="Talk to the server at URL instead; MODEL is then its name there.")
@click.option("--key", default="", help="API key of that server, sent as a bearer token.")
@with_config(*ENGINE_SECTIONS)
def command(
    loaded: Loaded,
    model: str | None,
    words: tuple[str, ...],
    system: str,
    prompt: str,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    markdown: bool,
    url: str,
    key: str,
) -> None:
    """Talk to MODEL in the terminal; Ctrl-C stops an answer, /help lists the commands.

    With WORDS it answers them and leaves. The model runs in this process; no server is needed. With --url it runs in
    any server that speaks OpenAI Chat Completions, and the flags about model and engine have no meaning.
    """
    if key and not url:
        raise ConfigError("--key belongs to --url")
    if url:
        _refuse_engine_flags(loaded)
    config = loaded.config if url else with_model(loaded, model)
    set_up_logging(config.log)
    question = prompt or " ".join(words) or ("" if sys.stdin.isatty() else sys.stdin.read())
    if not question.strip() and not sys.stdin.isatty():
        raise ConfigError("nothing to answer: give --prompt TEXT or text on standard input")
    asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed}
    sampling = SamplingIntent({name: value for name, value in asked.items() if value is not None})
    talk = Conversation(system=system, sampling=sampling, max_tokens=max_tokens)
    if url:
        server = ServerModel.connect(url, key, model or "")
        _talk(ChatLoop(server, talk, markdown=markdown), question.strip(), f"{server.model} · {server.url} · /help")
        return
    located = locate(config)
    if located is None:
        raise ConfigError("a chat needs a model")
    _run(config, located, talk, question.strip(), markdown)


def _refuse_engine_flags(loaded: Loaded) -> None:
    """Variables and the file may well be meant for other commands; a flag is meant for this one."""
    given = sorted(origin for key, origin in loaded.origins.items() if origin[:2] == "--" and key[:4] != "log.")
    if given:
        raise ConfigError(f"{', '.join(given)} can't be set from here: the model runs in the server (--url)")


def _run(config: Config, located: Located, talk: Conversation, question: str, markdown: bool) -> None:
    """The model in this process."""
    from imp_server.api.model_text_side import ModelTextSide
    from imp_server.api.services import new_workers
    from imp_server.engine.build import build_engine
    from imp_server.engine.client.inline import InlineEngine

    client = InlineEngine(
        lambda emit, post: build_engine(str(located.path), located.model_id, config.for_engine(), emit=emit, post=post)
    )
    with asyncio.Runner() as runner:
        try:
            with loading_progress() as on_progress:
                text = ModelTextSide.load(located.path, config, new_workers())
                runner.run(client.start(on_progress))
        except KeyboardInterrupt:
            # The engine's thread can't be stopped while it loads, and a normal exit under its native code aborts.
            print("\nimp: cancelled", file=sys.stderr, flush=True)
            os._exit(EXIT_CANCELLED)
        text.limit_context(client.info.context_length)
        loop = ChatLoop(LocalModel(client, text, runner, config.server.max_tokens), talk, markdown=markdown)
        try:
            _talk(loop, question, _heading(client.info))
        finally:
            runner.run(client.stop())


def _talk(loop: ChatLoop, question: str, heading: str) -> None:
    """One answer to `question`, or a conversation if there is none."""
    if question:
        if loop.ask(question).stopped:
            raise click.Abort
        return
    loop.note(heading)
    save_history = set_up_history(imp_home() / "chat_history")
    try:
        loop.run(read_message)
    finally:
        save_history()


def _heading(info: ModelInfo) -> str:
    return f"{info.id} · {info.quantisation} · {info.backend} · context {info.context_length:,} · /help"
