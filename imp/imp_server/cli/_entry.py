"""What the commands start with: a signal that comes while the rest is being imported ends them as it would later."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from imp_server.cli._exit_codes import EXIT_CANCELLED


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run(arguments: list[str], name: str = "imp") -> NoReturn:
    signal.signal(signal.SIGTERM, _interrupted)  # a server's own handlers replace it
    try:
        from imp_server.cli.main import run

        code = run(arguments, name)
    except KeyboardInterrupt:
        print(f"{name}: cancelled", file=sys.stderr)
        code = EXIT_CANCELLED
    sys.exit(code)


def main() -> NoReturn:
    """The command `imp`."""
    _run(sys.argv[1:])


def serve_main() -> NoReturn:
    """The command `imp-server`: `imp serve` under the name of the server that this one follows."""
    _run(["serve", *sys.argv[1:]])


def llama_server_main() -> NoReturn:
    """The command `imp-llama-server`: llama-server's own command line."""
    _run(["llama-server", *sys.argv[1:]])


def offline_main() -> NoReturn:
    """The command `imp-cli`: one prompt, no server."""
    _run(sys.argv[1:], "imp-cli")


if __name__ == "__main__":
    main()
