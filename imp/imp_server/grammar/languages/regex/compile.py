"""A regex as a machine: parse, take out anchors and lookarounds, bound the work, build lazily."""

from __future__ import annotations

from imp_server.core import GrammarRefused
from imp_server.core.turns import spend
from imp_server.grammar.languages.regex.anchors import AnchoredWords, Splitter
from imp_server.grammar.languages.regex.lookarounds import has_lookarounds, looking_machine
from imp_server.grammar.languages.regex.parser import parse
from imp_server.grammar.languages.regex.tree import Alt, Begin, Cat, End, Look, Tree, flat
from imp_server.grammar.machines.ambiguity import excessive
from imp_server.grammar.machines.combine import union
from imp_server.grammar.machines.lazy_product import either_product
from imp_server.grammar.machines.machine import Machine
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.nodes import Node, Nodes
from imp_server.grammar.machines.position_machine import position_machine
from imp_server.grammar.machines.terms import TermMachine

MAX_SHORTEST = 1_000_000
"""Characters that may still be needed, wherever in a match one stands."""


@remembered(maxsize=512)
def compile_regex(pattern: str, *, search: bool = True) -> Machine:
    """The texts in which `pattern` is found (`search`) or which it matches as a whole.

    Raises GrammarRefused, naming the construct and its place, for what no finite automaton can do exactly.
    """
    tree = parse(pattern)
    shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."

    def bounded(node: Node) -> Machine:
        sets = position_machine(node)
        if sets is not None:
            return sets
        if excessive(node):
            raise GrammarRefused(
                f"pattern {shown!r} can be read in thousands of ways at once; anchor it, or lower its counts"
            )
        if node.reach > MAX_SHORTEST and node is not nodes.never:
            raise GrammarRefused(f"pattern {shown!r} needs texts of more than {MAX_SHORTEST} characters")
        return TermMachine(nodes, node)

    rows = [_without_looks(option, search) for option in _options(tree)]
    if any(has_lookarounds(body) for body, _ in rows) or any(has_lookarounds(x.body) for _, xs in rows for x in xs):
        return looking_machine(pattern, search)
    nodes = Nodes()
    splitter = Splitter(nodes)
    machines: list[Machine] = []
    simple: list[Node] = []
    for body, looks in rows:
        found = _found(nodes, splitter.split(body), search)
        if not looks:
            simple.append(found)
            continue
        wanted, unwanted = [bounded(found)], list[Machine]()
        for look in looks:
            parts = splitter.split(look.body)
            edge = _from_begin(nodes, parts) if look.ahead else _to_end(nodes, parts)
            (wanted if look.wanted else unwanted).append(bounded(edge))
        machines.append(either_product(wanted, unwanted))
    if simple:
        machines.insert(0, bounded(nodes.either(simple)))
    return union(machines)


def _options(tree: Tree) -> tuple[Tree, ...]:
    return tree.options if isinstance(tree, Alt) else (tree,)


def _without_looks(tree: Tree, search: bool) -> tuple[Tree, list[Look]]:
    """The tree without the lookaheads right after its leading ^ and the lookbehinds right before its last $.

    Unless it is searched for, both may be left out.
    """
    parts = flat(tree)
    spend(1 + len(parts) // 8)
    if not search:
        parts = [*([] if parts and isinstance(parts[0], Begin) else [Begin()]), *parts]
        parts += [] if isinstance(parts[-1], End) else [End()]
    looks: list[Look] = []
    if parts and isinstance(parts[0], Begin):
        while len(parts) > 1 and isinstance(look := parts[1], Look) and look.ahead:
            looks.append(look)
            del parts[1]
    if parts and isinstance(parts[-1], End):
        while len(parts) > 1 and isinstance(look := parts[-2], Look) and not look.ahead:
            looks.append(look)
            del parts[-2]
    return (Cat(tuple(parts)), looks) if looks else (tree, [])


def _found(nodes: Nodes, parts: AnchoredWords, search: bool) -> Node:
    if not search:
        return nodes.either(parts)
    if parts.plain.nullable:
        return nodes.anything
    inside = nodes.sequence([nodes.anything, parts.plain, nodes.anything])
    return nodes.either([inside, _from_begin(nodes, parts, own=True), _to_end(nodes, parts, own=True), parts.both])


def _from_begin(nodes: Nodes, parts: AnchoredWords, *, own: bool = False) -> Node:
    """Texts that begin with a match; `own`: one that asked for the beginning."""
    if own:
        return nodes.sequence([parts.begin, nodes.anything])
    begun = nodes.sequence([nodes.either([parts.plain, parts.begin]), nodes.anything])
    return nodes.either([begun, parts.end, parts.both])


def _to_end(nodes: Nodes, parts: AnchoredWords, *, own: bool = False) -> Node:
    """Texts that end with a match; `own`: one that asked for the end."""
    if own:
        return nodes.sequence([nodes.anything, parts.end])
    ended = nodes.sequence([nodes.anything, nodes.either([parts.plain, parts.end])])
    return nodes.either([ended, parts.begin, parts.both])
