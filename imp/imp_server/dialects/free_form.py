"""Free-form (`custom`) tools: text for the client, for the model a function with one string, `input`.

Models are taught functions only, so both directions translate here. A grammar that the client attaches (lark
or regex) is shown to the model, and the text is bound by it (text/tools/enforce.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from imp_server.core import InputGrammar, Tool
from imp_server.dialects.intents import present

_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_BMP = r"\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE = re.compile(rf'(?:[^"\\]|\\["\\/bfnrt]|{_BMP}|{_PAIR})+')
"""Characters of a JSON string that can be decoded without what follows."""


def free_form_tool(name: str, tool: Mapping[str, Any], path: str) -> Tool:
    """`tool`: name, description and format, as the client defined it at `path`. `name`: what the model sees."""
    description = present(tool, "description", "")
    form = present(tool, "format", {"type": "text"})
    if form["type"] == "text":
        return Tool(name=name, description=description, parameters=_PARAMETERS)
    path += ".format"
    if "grammar" in form:  # Chat Completions nests what Responses has flat
        form, path = form["grammar"], f"{path}.grammar"
    grammar = InputGrammar(form["syntax"], form["definition"], f"{path}.definition")
    shown = f"The input must obey this {grammar.syntax} grammar:\n{grammar.definition}"
    description = f"{description}\n\n{shown}".lstrip()
    return Tool(name=name, description=description, parameters=_PARAMETERS, input_grammar=grammar)


def wrapped(text: str) -> str:
    """The function arguments that stand for the text in a history."""
    return json.dumps({"input": text}, ensure_ascii=False)


class InputReader:
    """Owner of one call's arguments while they grow; gives out the text of `input` as far as it is certain."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._given: list[str] = []
        self._pending = ""
        self._is_inside = False

    def feed(self, piece: str) -> str:
        self._pieces.append(piece)
        self._pending += piece
        if not self._is_inside:
            head = _HEAD.match(self._pending)
            if head is None:
                return ""
            self._is_inside = True
            self._pending = self._pending[head.end() :]
        whole = _WHOLE.match(self._pending)
        if whole is None:
            return ""
        self._pending = self._pending[whole.end() :]
        return self._give(json.loads(f'"{whole.group()}"', strict=False))

    def rest(self) -> str:
        """What was still uncertain at the end of a whole call: arguments of another shape are text as they stand."""
        raw, given = "".join(self._pieces), "".join(self._given)
        if raw == "{}":  # called without arguments
            return ""
        try:
            value = json.loads(raw, strict=False)["input"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return "" if self._is_inside else self._give(raw)
        if not isinstance(value, str):
            return self._give(raw)
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self._give(value[len(given) :]) if value.startswith(given) else ""

    def _give(self, text: str) -> str:
        self._given.append(text)
        return text

    @property
    def text(self) -> str:
        return "".join(self._given)
