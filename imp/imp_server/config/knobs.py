"""What a knob is: one field of a section, with the flag, the variable and the help made from it."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from imp_server.config.compat import FLAG_ALIASES
from imp_server.config.tree import Config

FLAT_SECTIONS = frozenset({"server", "model", "engine"})
"""Their flags carry no section name: --port, not --server-port."""


@dataclass(frozen=True, slots=True)
class Knob:
    """`kind` is bool, int, float, str or tuple; `choices` restricts a str."""

    section: str
    name: str
    kind: type
    annotation: Any
    default: Any
    help: str
    flag: str
    aliases: tuple[str, ...]
    choices: tuple[str, ...]
    bounds: str
    """`>= 0`, or empty."""
    secret: bool

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return variable_of(self.flag)

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag, *self.aliases)

    @property
    def expected(self) -> str:
        """What a value must be, for errors and docs."""
        if self.choices:
            return " | ".join(choice or '""' for choice in self.choices)
        noun = {bool: "true or false", int: "integer", float: "number", str: "text", tuple: "comma list"}[self.kind]
        return f"{noun} {self.bounds}".strip()


def variable_of(flag: str) -> str:
    """--cpu-isa -> IMP_CPU_ISA."""
    return "IMP" + flag.removeprefix("-").replace("-", "_").upper()


@cache
def knobs() -> dict[str, Knob]:
    """Every knob by its key, in the order of the sections."""
    found = {}
    for section in Config.__struct_fields__:
        struct = type(getattr(Config(), section))
        texts = field_texts(struct)
        hints = get_type_hints(struct, include_extras=True)
        for field in msgspec.structs.fields(struct):
            knob = describe(section, field.name, hints[field.name], field.default, texts.get(field.name, ""))
            found[knob.key] = knob
    return found


def describe(section: str, name: str, annotation: Any, default: Any, text: str) -> Knob:
    """The knob of one field."""
    metas = []
    plain = annotation
    if get_origin(annotation) is Annotated:
        plain, *metas = get_args(annotation)
    extra: dict[str, Any] = {}
    for meta in metas:
        extra |= meta.extra or {}
    choices = get_args(plain) if get_origin(plain) is Literal else ()
    kind = str if choices else (get_origin(plain) or plain)
    word = extra.get("flag") or (name if section in FLAT_SECTIONS else f"{section}_{name}")
    flag = "--" + word.replace("_", "-")
    key = f"{section}.{name}"
    aliases = tuple(alias for alias, target in FLAG_ALIASES.items() if target == key)
    bounds = " and ".join(
        f"{sign} {limit}"
        for meta in metas
        for sign, limit in ((">=", meta.ge), (">", meta.gt), ("<=", meta.le), ("<", meta.lt))
        if limit is not None
    )
    secret = bool(extra.get("secret"))
    return Knob(section, name, kind, annotation, default, text, flag, aliases, choices, bounds, secret)


@cache
def _module_classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def field_texts(struct: type) -> dict[str, str]:
    """Field -> the string that follows it in the source, as Python keeps no docstrings of fields."""
    texts = {}
    previous: str | None = None
    for node in _module_classes(struct.__module__)[struct.__name__].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            previous = node.target.id
        elif previous and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts[previous] = " ".join(str(node.value.value).split())
    return texts


def section_text(section: str) -> str:
    """First line of a section's docstring."""
    return (inspect.getdoc(type(getattr(Config(), section))) or "").partition("\n")[0]
