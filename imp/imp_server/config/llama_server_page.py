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
`exceed_context_size_error` with `n_prompt_tokens` and `n_ctx`. `/metrics` without `--metrics`, and `/slots` with
`--no-slots`, are 501. `system_fingerprint` begins with `b`, and a streamed chat with a delta whose content is null.
Anthropic's and TGI's routes keep the shapes of their own. Not there yet: `--context-shift`, slot files, `POST /props`,
`__verbose`, `--no-jinja`.

What llama-server does by default and imp doesn't, set in this mode unless something else is asked for:

| imp's knob | value here |
|---|---|
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
    return text


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
