"""Which path of the contract a request means: behind the prefix of --api-prefix, with or without /v1."""

from __future__ import annotations

from collections.abc import Iterable

from imp_server.core import ConfigError

_V1 = "/v1"


class Paths:
    """The paths of a contract, as they are served. Immutable."""

    def __init__(self, contract_paths: Iterable[str], prefix: str = "") -> None:
        """`prefix`: what every path begins with, like /llm. Raises ConfigError for one that can't be matched."""
        self.prefix = f"/{prefix.strip('/')}" if prefix.strip("/") else ""
        if not all(c.isalnum() or c in "/-._~" for c in self.prefix) or "//" in self.prefix:
            raise ConfigError(f"--api-prefix {prefix!r}: use letters, digits and - . _ ~ between slashes, like /llm")
        self._known = frozenset(contract_paths)

    def served(self, path: str) -> tuple[str, ...]:
        """Under which paths an operation is served: one below /v1 without it, too, if no other is there."""
        short = path.removeprefix(_V1)
        names = (path, short) if path.startswith(f"{_V1}/") and short not in self._known else (path,)
        return tuple(self.prefix + name for name in names)

    def meant(self, path: str) -> str:
        """The path that the contract would have; "" outside of the prefix."""
        if not path.startswith(f"{self.prefix}/"):
            return ""
        inner = path.removeprefix(self.prefix).rstrip("/") or "/"
        return _V1 + inner if inner not in self._known and _V1 + inner in self._known else inner

    def advice(self, path: str) -> str:
        """What is wrong with an unknown path, if that can be told."""
        if self.prefix and not path.startswith(f"{self.prefix}/"):
            return f"; every path of this server begins with {self.prefix}"
        if path.startswith(f"{self.prefix}{_V1}{_V1}"):
            return "; /v1 is there twice: the client adds it to a base URL that has it already, so leave it out there"
        if path.startswith(f"{self.prefix}/api/"):
            return f"; Ollama's own API isn't spoken here, OpenAI's is: POST {self.prefix}{_V1}/chat/completions"
        return ""
