"""The command line: finds commands by folder, turns every error into one line and an exit code."""

from __future__ import annotations

import ast
import difflib
import importlib
import io
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from imp_server import __version__
from imp_server.cli._exit_codes import EXIT_CANCELLED, EXIT_INTERNAL, EXIT_USAGE
from imp_server.cli._message import fitted
from imp_server.config import environment
from imp_server.core import HostOutOfMemory, ImpError, UserFault
from imp_server.logs import tell_json

_FOLDER = Path(__file__).parent
ALIASES = {"run": "chat", "list": "ls"}
"""Names that other programs have for our commands."""
_MEANT = {
    "start": ["serve"],
    "server": ["serve"],
    "up": ["serve"],
    "download": ["pull"],
    "get": ["pull"],
    "install": ["pull"],
    "remove": ["rm"],
    "delete": ["rm"],
    "info": ["show"],
    "status": ["ps"],
    "version": ["--version"],
    "search": ["ls --known"],
    "models": ["ls"],
    "create": ["serve FILE --alias NAME"],
    "cp": ["serve FILE --alias NAME"],
    "generate": ["chat"],
    "llama-cli": ["chat"],
    "benchmark": ["bench"],
    "test": ["conformance"],
    "check": ["doctor"],
}
"""Words for them that aren't near."""
_NOT_HERE = {
    "stop": "a server ends by Ctrl-C in its terminal, or by SIGTERM",
    "push": "imp sends no models anywhere",
    "signin": "there is no account; HF_TOKEN opens repositories of the hub that ask for one",
    "signout": "there is no account",
    "launch": "docs/clients.md says what agents need; imp serve is all of it on this side",
    "login": "there is no account; HF_TOKEN opens repositories of the hub that ask for one",
}
"""What other programs do by a command of this name."""


class Commands(click.Group):
    """Imports a command's module only when that command is called: `imp ls` never loads the server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        stems = (p.stem for p in _FOLDER.glob("*.py"))
        return sorted(stem.replace("_", "-") for stem in stems if stem[0] != "_" and stem != "main")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"imp_server.cli.{_module(cmd_name)}").command
        assert isinstance(command, click.Command), cmd_name
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Leaves quietly where nobody reads the output any more, as under `| head`: click would exit with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # keep Python from complaining at the end
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_line(name)) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            names = self.list_commands(ctx)
            word = args[0]
            close = _MEANT.get(word) or difflib.get_close_matches(word, [*names, *ALIASES], 2, 0.6)
            meant = f"did you mean {' or '.join(close)}? The" if close else "the"
            if word in _NOT_HERE:
                meant = f"{_NOT_HERE[word]}. The"
            message = f"there is no command {word}; {meant} commands are {', '.join(names)}"
            raise click.UsageError(message, ctx) from None


def _module(command: str) -> str:
    return command.replace("-", "_")


def _first_line(name: str) -> str:
    """What a command does, read from its source without importing it."""
    docstring = ast.get_docstring(ast.parse((_FOLDER / f"{_module(name)}.py").read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


@click.group(cls=Commands, context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100})
@click.version_option(__version__, "--version", "-v", "-V", prog_name="imp", message="%(prog)s %(version)s")
def imp() -> None:
    """An LLM server for your own machine.

    `imp serve` starts it with a small default model; `imp chat` talks to one in the terminal. `imp run` is `imp chat`,
    `imp list` is `imp ls`.
    """


def main() -> None:
    """The command `imp`."""
    sys.exit(run(sys.argv[1:]))


def _asked(name: str, arguments: list[str]) -> list[str]:
    """`imp help NAME` is `imp NAME --help`."""
    return [*arguments[1:], "--help"] if name == "imp" and arguments[:1] == ["help"] else arguments


def run(arguments: list[str], name: str = "imp") -> int:
    """Run one command line of the command `name`; the exit code. Every expected failure is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal can't spell is no error
    try:
        result: Any = _command(name).main(_asked(name, arguments), prog_name=name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.UsageError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        return _say(error.format_message(), EXIT_USAGE)
    except (KeyboardInterrupt, click.Abort):
        return _say("cancelled", EXIT_CANCELLED)
    except UserFault as fault:
        return _say(fault.message, fault.exit_code)
    except MemoryError:
        return _say("out of memory; use a smaller model or a shorter --max-seq-len", HostOutOfMemory.exit_code)
    except ImpError as error:
        return _say(error.message, EXIT_INTERNAL)
    except Exception as error:
        if environment("IMP_LOG_LEVEL") == "debug":
            traceback.print_exc()
        return _say(f"internal error: {type(error).__name__}: {error} (IMP_LOG_LEVEL=debug shows where)", EXIT_INTERNAL)


def _command(name: str) -> click.Command:
    if name == "imp":
        return imp
    from imp_server.cli._offline import command

    return command


def _say(message: str, exit_code: int) -> int:
    line = " ".join(message.split())
    if not tell_json(line, logging.ERROR):
        print(fitted(f"imp: {line}", sys.stderr), file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    main()
