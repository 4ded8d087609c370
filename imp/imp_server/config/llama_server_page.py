"""The page docs/llama-server.md and the help of `imp llama-server`, made from the table of flags."""

from __future__ import annotations

from imp_server.config.llama_server import FLAGS, HABITS, Flag, Verdict

_HEAD = """# In the place of llama-server

`imp llama-server` (also `imp-llama-server`) takes llama-server's own command line and its environment, so a script, a
unit file or a container that starts one can start imp instead:

```sh
imp llama-server -m model.gguf -c 8192 -np 4 --port 8080
LLAMA_ARG_MODEL=model.gguf LLAMA_ARG_PORT=8080 imp llama-server
```

Every flag is served, without effect, or refused. *Without effect* is said only where neither an answer nor a limit
could differ, and imp names such a flag when it starts; a refused one stops it with the reason. imp's own variables
(`IMP_*`) and `imp.toml` hold, too: the command line is stronger, llama-server's habits are weaker.

"""
_HABITS = """## Habits

Errors are `{"error": {"code": STATUS, "message", "type"}}`; a prompt that is too long is an
`exceed_context_size_error` with `n_prompt_tokens` and `n_ctx`. `/metrics` without `--metrics`, `/slots` with
`--no-slots` and `POST /props` without `--props` are 501. `system_fingerprint` begins with `b`, and a streamed chat with
a delta whose content is null. A stream of Responses ends with timings. Anthropic's and TGI's routes keep the shapes of
their own; a chat without messages is taken by the former.

* `-n` is the most that any request gets, also one that asks for more. `-c` is divided among `-np` rows, unless `-kvu`.
* An assistant message at the end is gone on with (`--no-prefill-assistant`: it is a turn like others). Its texts are
  joined with an empty line, those of other messages with a line break. `enable_thinking` counts beside tools, too.
* `--no-jinja` refuses requests with tools; templates are always rendered. `--chat-template` takes Jinja itself and the
  names of docs/models.md. `-v`, or `"verbose": true` in a request, adds `__verbose`: what the model was sent and wrote.
* `-md` loads a draft model, `--spec-type draft-simple` uses it.
* `--context-shift`: at the end of the context the ids behind the first `n_keep` move up by `n_discard` (0 = half of
  them), and what is kept is **computed anew**, so `n_discard` is at least a sixteenth of the context. There
  they are moved with the keys and values that they got from what is gone.
* `/embeddings` has llama.cpp's own shape always. `--pooling` left out is the file's own, else the last position: there
  it is none, a vector for each token, which `--pooling none` gives here, too.
* `--slot-save-path DIR`: `POST /slots/ID?action=save|restore|erase` with a `filename`. A file is a session of the
  prefix cache with its blocks and the model's fingerprint: another model's is refused, and each API key has its own
  names, and all its files together at most `prefix_cache.path_mib`. Files of llama.cpp can't be read. `save` takes
  what the slot's last request left, `erase` forgets it.
* `POST /props` is answered and changes nothing. `--no-ui` leaves `/` and `/docs` out.
* CORS: only pages of this machine with `localhost` as the origins, `--cors-methods` and `--cors-headers` are told as
  they are, credentials unless the origin is `*`; and yet pages of other origins than those named are refused on every
  route.
* Without a model the server is a router of what `imp pull` has fetched (docs/router.md).

Vertex AI's `AIP_MODE=PREDICTION` is heeded in every mode: `AIP_HTTP_PORT`, `AIP_HEALTH_ROUTE` and `AIP_PREDICT_ROUTE`
hold, and the latter takes `{"instances": [...]}`, at most 128, each with an `@requestFormat`.

Adapters are served as there, by `--lora`, `--lora-scaled`, `/lora-adapters` and a request's `lora` (docs/adapters.md);
an adapter that doesn't fit ends the start, a number that no adapter has is a 400.

**Never built** are the tools that run on the server (`/tools`), MCP servers and `/cors-proxy`: whoever can write a
prompt would run programs, read files and reach other machines of the server's network. These routes are 403
`feature_disabled`, and `/props` says `cors_proxy_enabled: false`.

What llama-server does by default and imp doesn't, set in this mode unless something else is asked for:

| imp's knob | value here |
|---|---|
"""
_TESTS = """
## That project's own tests

`make llama-server-tests SDIST=FILE` takes llama.cpp's tests of its server out of a source distribution of
llama-cpp-python (0.3.36), changes them by the list in `conformance/llama_server/patches.py` (counts and texts that are
those of the models' weights, names of events; each entry says why), and runs them against imp with tiny models made on
the spot. Nothing is fetched. It isn't part of `make test`.

| file | cases | pass | fail | left out, and why |
|---|---|---|---|---|
| basic | 8 | 8 | 0 | |
| chat_completion | 52 | 52 | 0 | |
| compat_anthropic | 30 | 25 | 0 | 3 images; 2 a model of gigabytes |
| compat_gcp | 2 | 2 | 0 | |
| compat_oai_responses | 3 | 3 | 0 | |
| completion | 40 | 38 | 0 | 1 a model of gigabytes; 1 skipped by the test itself |
| ctx_shift | 5 | 5 | 0 | |
| embedding | 33 | 33 | 0 | |
| ignore_eos | 2 | 2 | 0 | |
| infill | 8 | | | 8 infill comes later |
| kv_keep_only_active | 2 | 2 | 0 | |
| lora | 4 | 3 | 0 | 1 a model of gigabytes |
| mcp_servers | 21 | | | 21 never built |
| metrics | 10 | 10 | 0 | |
| proxy | 4 | | | 4 never built |
| rerank | 16 | | | 16 rerank comes later |
| router | 17 | 16 | 0 | 1 presets of a repository (`--models-preset` has sections) |
| security | 29 | 22 | 0 | 5 images; 1 built-in tools; 1 proxy |
| sleep | 4 | 3 | 0 | 1 a gauge that each scrape resets: two scrapers would disturb each other |
| slot_save | 9 | 3 | 0 | 5 images; 1 a file of llama.cpp's own layout |
| speculative | 8 | 6 | 0 | 2 acceptance that is made up |
| stream | 3 | 3 | 0 | |
| template | 35 | 35 | 0 | |
| tokenize | 3 | 3 | 0 | |
| tool_call | 202 | 6 | 0 | 196 a model of gigabytes |
| tools_builtin | 20 | | | 20 never built |
| vision_api | 20 | | | 20 images |

"""
_TITLES: dict[Verdict, str] = {"served": "Served", "refused": "Refused", "no effect": "Without effect"}
_COLUMNS: dict[Verdict, str] = {"served": "imp's own", "refused": "why", "no effect": "why"}


def page() -> str:
    """docs/llama-server.md."""
    text = _HEAD + _HABITS + "".join(f"| `{key}` | `{value}` |\n" for key, value in HABITS.items())
    for verdict, title in _TITLES.items():
        rows = [flag for flag in FLAGS if flag.verdict == verdict]
        text += f"\n## {title}\n\n| flag | variable | {_COLUMNS[verdict]} |\n|---|---|---|\n"
        text += "".join(_row(flag) for flag in rows)
    return text + _TESTS.rstrip("\n") + "\n"


def usage() -> str:
    """What --help prints."""
    lines = ["Usage: imp llama-server [llama-server's own options]", ""]
    lines += ["Served:"] + [f"  {', '.join(f.names + f.off):<60} {_ours(f)}" for f in FLAGS if f.verdict == "served"]
    for verdict, title in (("no effect", "Without effect"), ("refused", "Refused, with a reason")):
        names = [flag.names[0] for flag in FLAGS if flag.verdict == verdict]
        lines += ["", f"{title}: {' '.join(names)}"]
    return "\n".join([*lines, ""])


def _row(flag: Flag) -> str:
    names = ", ".join(f"`{name}`" for name in (*flag.names, *flag.off))
    variable = f"`{flag.env}`" if flag.env else ""
    return f"| {names} | {variable} | {_ours(flag) if flag.verdict == 'served' else _reason(flag)} |\n"


def _ours(flag: Flag) -> str:
    targets = flag.knob.split() if "." in flag.knob else [flag.knob]
    notes = [flag.why] if flag.why else []
    if flag.only:
        notes.append(f"values: {', '.join(flag.only)}")
    return ", ".join(f"`{target}`" for target in targets) + (f"; {'; '.join(notes)}" if notes else "")


def _reason(flag: Flag) -> str:
    allowed = f"; taken: {', '.join(f'`{value}`' for value in flag.harmless)}" if flag.harmless else ""
    return flag.why + allowed
