"""The command `imp-cli`: one prompt, a measurement or a perplexity, by a model in this process; no server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from imp_server.api.model_text_side import ModelTextSide
from imp_server.api.services import new_workers
from imp_server.cli._chat_answer import ChatAnswer, LocalModel
from imp_server.cli._chat_loop import ChatLoop
from imp_server.cli._chat_prompt import read_message, set_up_history
from imp_server.cli._conversation import Conversation
from imp_server.cli._knob_options import ENGINE_SECTIONS, KnobCommand, with_config, with_model
from imp_server.cli._launch import loading_progress, locate
from imp_server.cli._offline_measures import measure, perplexity
from imp_server.config import Config, imp_home
from imp_server.config.load import Loaded
from imp_server.core import ConfigError, OutputIntent, SamplingIntent
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.logs import set_up_logging

Json = dict[str, Any]
_MAX_TOKENS, _MAX_TOKENS_TALKING = 8192, 16384
_MOST_STOPS = 4
_SAMPLING: tuple[tuple[str, str, Any, Any], ...] = (
    ("--temperature", "temperature", click.FloatRange(0), None),
    ("--top-p", "top_p", click.FloatRange(0, 1), None),
    ("--top-k", "top_k", click.IntRange(0), None),
    ("--min-p", "min_p", click.FloatRange(0, 1), 0.0),
    ("--typical-p", "typical_p", click.FloatRange(0, 1, min_open=True), 1.0),
    ("--repeat-penalty", "repetition_penalty", click.FloatRange(0, min_open=True), 1.0),
    ("--repeat-last-n", "repeat_last_n", click.IntRange(0), 0),
    ("--frequency-penalty", "frequency_penalty", click.FloatRange(-2, 2), 0.0),
    ("--presence-penalty", "presence_penalty", click.FloatRange(-2, 2), 0.0),
    ("--seed", "seed", click.IntRange(-1), -1),
    ("--dry-multiplier", "dry_multiplier", click.FloatRange(0), 0.0),
    ("--dry-base", "dry_base", click.FloatRange(1), 1.75),
    ("--dry-allowed-length", "dry_allowed_length", click.IntRange(0), 2),
    ("--dry-penalty-last-n", "dry_penalty_last_n", click.IntRange(0), 0),
    ("--mirostat", "mirostat", click.IntRange(0, 2), 0),
    ("--mirostat-tau", "mirostat_tau", click.FloatRange(0), 5.0),
    ("--mirostat-eta", "mirostat_eta", click.FloatRange(0, 1), 0.1),
)
"""Flag, our name, what it may be, and its default; None = the model's own."""
_NOT_HERE = {
    "image": "--image: images aren't supported yet",
    "mtp_spec_decode": "--mtp-spec-decode: no model that imp runs has such heads; --draft-model drafts",
    "streaming_kv": "--streaming-kv: nothing is left out of a context here; --max-seq-len makes it longer",
    "stream_sinks": "--stream-sinks belongs to --streaming-kv, which isn't here",
}


@dataclass(slots=True)
class OfflineWish:
    """What the command line says, beside the configuration."""

    prompt: str
    interactive: bool
    max_tokens: int
    sampling: SamplingIntent
    stop: tuple[str, ...]
    as_json: bool


def _sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for flag, name, kind, default in reversed(_SAMPLING):
        shown = "the model's own" if default is None else f"{default:g}"
        function = click.option(flag, name, type=kind, default=default, metavar="X", help=f"[{shown}]")(function)
    return function


@click.command(cls=KnobCommand, example="imp-cli --model smollm2 --prompt 'Say hello.' --json")
@click.option("--prompt", default="", metavar="TEXT", help="Answer this.")
@click.option("--prompt-file", default="", metavar="FILE", help="Answer what is in FILE; - is standard input.")
@click.option("--interactive", is_flag=True, help="Go on talking.")
@click.option("--max-tokens", type=click.IntRange(1), default=None, metavar="N", help="[8192; interactive 16384]")
@_sampling_options
@click.option("--stop", multiple=True, metavar="TEXT", help="Ends the answer; at most four.")
@click.option("--image", multiple=True, hidden=True)
@click.option("--prefix-caching", is_flag=True, help="Keep what was computed for the next prompt that begins alike.")
@click.option("--mtp-spec-decode", type=int, default=None, hidden=True)
@click.option("--streaming-kv", is_flag=True, hidden=True)
@click.option("--stream-sinks", type=int, default=None, hidden=True)
@click.option("--bench", is_flag=True, help="Measure instead: a prefill, and tokens one by one.")
@click.option("--bench-pp", type=click.IntRange(2), default=512, metavar="N", show_default=True, help="Its prompt.")
@click.option("--bench-reps", type=click.IntRange(1), default=3, metavar="N", show_default=True, help="Medians of N.")
@click.option("--perplexity", "corpus", default="", metavar="FILE", help="Perplexity of a text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@with_config(*ENGINE_SECTIONS)
def command(loaded: Loaded, **given: Any) -> None:
    """Run a model in this process: answer a prompt and leave."""
    for name, why in _NOT_HERE.items():
        if given[name]:
            raise ConfigError(why)
    config = with_model(loaded, None)
    config = msgspec.structs.replace(
        config, prefix_cache=msgspec.structs.replace(config.prefix_cache, enabled=given["prefix_caching"])
    )
    set_up_logging(config.log)
    asked = _asked(given)
    if given["bench"]:
        sizes = (given["bench_pp"], given["max_tokens"] or 128, given["bench_reps"])
        _tell(_run(config, lambda run: run.loop.run(measure(run.client, *sizes))), as_json=asked.as_json)
    elif given["corpus"]:
        text = _read(given["corpus"])
        told = _run(config, lambda run: run.loop.run(perplexity(run.client, run.text.model.tokenizer, text)))
        _tell({**told, "corpus": given["corpus"]}, as_json=asked.as_json)
    elif asked.interactive:
        _run(config, lambda run: _talk(run, asked, config))
    else:
        _tell_answer(_run(config, lambda run: _answer(run, asked)), as_json=asked.as_json)


def _asked(given: Json) -> OfflineWish:
    if sum(bool(given[name]) for name in ("interactive", "bench", "corpus")) > 1:
        raise ConfigError("--interactive, --bench and --perplexity can't go together")
    if given["interactive"] and given["as_json"]:
        raise ConfigError("--json is for one answer, --bench or --perplexity")
    if len(given["stop"]) > _MOST_STOPS:
        raise ConfigError(f"--stop can be given {_MOST_STOPS} times at most")
    if given["prompt"] and given["prompt_file"]:
        raise ConfigError("give the prompt once: --prompt or --prompt-file")
    prompt = given["prompt"] or (_read(given["prompt_file"]) if given["prompt_file"] else "")
    if not (prompt or given["interactive"] or given["bench"] or given["corpus"]):
        raise ConfigError("nothing to do: give --prompt, --prompt-file, --interactive, --bench or --perplexity")
    chosen = {name: given[name] for _, name, _, _ in _SAMPLING if given[name] is not None}
    if chosen["seed"] < 0:
        del chosen["seed"]
    limit = given["max_tokens"] or (_MAX_TOKENS_TALKING if given["interactive"] else _MAX_TOKENS)
    return OfflineWish(prompt, given["interactive"], limit, SamplingIntent(chosen), given["stop"], given["as_json"])


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {name}: {error}") from None


@dataclass(frozen=True, slots=True)
class Run:
    """A loaded model."""

    client: InlineEngine
    text: ModelTextSide
    loop: asyncio.Runner


def _run(config: Config, work: Callable[[Run], Any]) -> Any:
    """What `work` gives, with the model loaded for it."""
    located = locate(config)
    if located is None:
        raise ConfigError("imp-cli needs a model: --model")
    client = InlineEngine(
        lambda emit, post: build_engine(str(located.path), located.model_id, config.for_engine(), emit=emit, post=post)
    )
    with asyncio.Runner() as loop:
        with loading_progress() as on_progress:
            text = ModelTextSide.load(located.path, config, new_workers())
            loop.run(client.start(on_progress))
        text.limit_context(client.info.context_length)
        try:
            return work(Run(client, text, loop))
        finally:
            loop.run(client.stop())


def _conversation(asked: OfflineWish) -> Conversation:
    return Conversation(sampling=asked.sampling, max_tokens=asked.max_tokens, stop=asked.stop)


def _answer(run: Run, asked: OfflineWish) -> ChatAnswer:
    talk = _conversation(asked)
    talk.add("user", asked.prompt)
    request = talk.request()
    limit = min(asked.max_tokens, run.client.info.context_length)
    request = msgspec.structs.replace(request, output=OutputIntent(max_tokens=limit, stop=asked.stop))
    model = LocalModel(run.client, run.text, run.loop)
    return model.answer(request, _nothing if asked.as_json else _write)


def _talk(run: Run, asked: OfflineWish, config: Config) -> None:
    talk = _conversation(asked)
    loop = ChatLoop(LocalModel(run.client, run.text, run.loop, config.server.max_tokens), talk)
    if asked.prompt:
        loop.ask(asked.prompt)
    set_up_history(imp_home() / "chat_history")
    loop.run(read_message)


def _write(text: str, _is_reasoning: bool) -> None:
    click.echo(text, nl=False)


def _nothing(_text: str, _is_reasoning: bool) -> None: ...


def _tell_answer(answer: ChatAnswer, *, as_json: bool) -> None:
    if not as_json:
        click.echo()
        return
    prefill_ms, decode_ms, n_steps = answer.prefill_ms, answer.decode_ms, max(0, answer.tokens - 1)
    told = {
        "text": answer.text,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "prefill_tps": 1e3 * (answer.prompt_tokens - answer.cached_tokens) / prefill_ms if prefill_ms else 0.0,
        "decode_tps": 1e3 * n_steps / decode_ms if decode_ms > 0 else 0.0,
        "prefill_ms": prefill_ms,
        "decode_ms": decode_ms,
        "total_ms": 1e3 * answer.total_s,
    }
    _tell(told, as_json=True)


def _tell(told: Json, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for name, value in told.items():
        click.echo(f"{name.replace('_', ' '):<14}{value:,.2f}" if isinstance(value, float) else f"{name:<14}{value}")
