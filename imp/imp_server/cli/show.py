"""Say what a model is and what it needs."""

from __future__ import annotations

import json

import click

from imp_server.cli._completion import model_names
from imp_server.cli._model_facts import SOME_CONTEXT, ModelFacts, memory_of_known, model_facts
from imp_server.cli._terminal import age_text, count_text, print_table, size_text
from imp_server.core import ModelFileMissing, UnsupportedModel
from imp_server.weights.catalogue import NamedModel, Pulled, find
from imp_server.weights.known import KNOWN
from imp_server.weights.manifest import FileRecord


@click.command()
@click.argument("model", default="", shell_complete=model_names)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(model: str, as_json: bool) -> int:
    """Say what MODEL (a name or a path; default: the default model) is, and what it needs.

    Exit code 0 if it can be run, 4 if there is no such model, 5 if its files are damaged, 6 if it isn't supported. A
    known model that isn't here yet is told about with the same codes.
    """
    wanted = find(model)
    if wanted is None or wanted.local is None:
        return _not_here(wanted, as_json)
    facts = model_facts(wanted.local, thorough=True)
    if as_json:
        files = [{"path": f.path, "bytes": f.size, "sha256": f.sha256} for f in _files(wanted.pulled)]
        click.echo(json.dumps({"name": wanted.name, "here": True, **facts.as_json(), "files": files}, indent=2))
    else:
        print_table(("MODEL", wanted.name), _rows(facts, wanted.pulled))
    return facts.exit_code


def _not_here(wanted: NamedModel | None, as_json: bool) -> int:
    if wanted is None or wanted.name not in KNOWN:
        name = wanted.name if wanted else "none"
        raise ModelFileMissing(f"{name} isn't here; `imp pull {name}` fetches it")
    known = KNOWN[wanted.name]
    if as_json:
        about = {
            "name": known.name, "here": False, "about": known.about_text, "source": known.source_text,
            "bytes": known.file_bytes, "memory_bytes": memory_of_known(known), "licence": known.licence,
            "supported": known.runs,
        }  # fmt: skip
        click.echo(json.dumps(about, indent=2))
    else:
        print_table(
            ("MODEL", known.name),
            [
                ("about", known.about_text),
                ("from", known.source_text),
                ("size", f"about {size_text(known.file_bytes)}"),
                ("memory", f"about {size_text(memory_of_known(known))} with {SOME_CONTEXT:,} tokens of context"),
                ("licence", known.licence),
                ("supported", "yes" if known.runs else "not yet: its family isn't known"),
                ("here", f"no; `imp pull {known.name}` fetches it"),
            ],
        )
    return 0 if known.runs else UnsupportedModel.exit_code


def _files(pulled: Pulled | None) -> list[FileRecord]:
    return list(pulled.manifest.files) if pulled else []


def _rows(facts: ModelFacts, pulled: Pulled | None) -> list[tuple[str, str]]:
    rows = [("path", facts.path)]
    if facts.format:
        rows += [
            ("title", facts.title),
            ("architecture", f"{facts.architecture}, {count_text(facts.parameters)} parameters"),
            ("weights", f"{facts.quantisation}, {size_text(facts.file_bytes)}"),
            ("context", f"{facts.context:,} tokens" if facts.context else "the file doesn't say"),
            ("chat template", "yes" if facts.chat_template else "none: name one with --chat-template"),
        ]
    if facts.layers:
        rows += [
            ("shape", f"{facts.layers} layers of {facts.width}, {facts.vocabulary:,} tokens in the vocabulary"),
            ("memory", f"about {size_text(facts.memory_bytes)} with one full context"),
        ]
        rows += [("rope", facts.rope_scaling)] if facts.rope_scaling else []
    rows.append(("supported", f"no: {facts.problem}" if facts.problem else "yes"))
    if pulled:
        rows += [("from", pulled.manifest.source), ("pulled", age_text(pulled.manifest.pulled_at))]
        rows += [("sha256", f"{file.sha256}  {file.path}") for file in pulled.manifest.files if file.size > 1 << 20]
    return rows
