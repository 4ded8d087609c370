r"""The string formats that are enforced, as machines. Every other name is an annotation.

Sources: RFC 3339 (date, time, date-time, duration; appendix A for durations), RFC 5321 (email), RFC 1123 (hostname),
RFC 4291 (ipv6), RFC 3986 (uri, uri-reference), RFC 4122 (uuid), RFC 6901 (json-pointer), ECMA-262 (regex).

Where validators disagree the narrower reading counts, so that what is generated passes all of them: no year 0000, no
leap second, no limit of 64 characters on an email's local part (nothing checks it, and it would make lengths costly).
"""

from __future__ import annotations

from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.machines.lengths import with_length
from imp_server.grammar.machines.machine import Machine
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.nodes import INFINITE, Node, Nodes, Spread
from imp_server.grammar.machines.terms import TermMachine

_YEAR = r"(?:\d{3}[1-9]|\d{2}[1-9]0|\d[1-9]00|[1-9]000)"
_BY_FOUR = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = rf"(?:\d\d{_BY_FOUR}|{_BY_FOUR}00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_CLOCK = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION = rf"P(?:(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:{_CLOCK})?|{_CLOCK}|\d+W)"

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"


def _ipv6() -> str:
    """IPv6address of RFC 3986, section 3.2.2: `after` groups behind the double colon, at most 7 - `after` before it."""
    options = [f"(?:{_H16}:){{6}}{_LS32}"]
    for after in range(7, -1, -1):
        tail = f"{_H16}:" * (after - 2) + _LS32 if after >= 2 else _H16 if after == 1 else ""
        most = 7 - after
        head = f"(?:{_H16}(?::{_H16}){{0,{most - 1}}})?" if most else ""
        options.append(f"{head}::{tail}")
    return "(?:" + "|".join(options) + ")"


_IPV6 = _ipv6()

_ATEXT = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = rf'(?:{_ATEXT}+(?:\.{_ATEXT}+)*|"(?:[ !#-\[\]-~]|\\[ -~])*")'
_EMAIL = rf"{_LOCAL}@(?:{_DOMAIN}|\[(?:{_IPV4}|IPv6:{_IPV6})\])"

_UNRESERVED = r"A-Za-z0-9._~-"
_SUB = "!$&'()*+,;="
_PERCENT = "%[0-9A-Fa-f]{2}"
_PCHAR = f"(?:[{_SUB}:@{_UNRESERVED}]|{_PERCENT})"
_SEGMENT_NO_COLON = f"(?:[{_SUB}@{_UNRESERVED}]|{_PERCENT})+"
_USERINFO = f"(?:[{_SUB}:{_UNRESERVED}]|{_PERCENT})*@"
_REG_NAME = f"(?:[{_SUB}{_UNRESERVED}]|{_PERCENT})*"
_IP_LITERAL = rf"\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[{_SUB}:{_UNRESERVED}]+)\]"
_AUTHORITY = rf"(?:{_USERINFO})?(?:{_IP_LITERAL}|{_REG_NAME})(?::[0-9]*)?"
_PATH_ABEMPTY = f"(?:/{_PCHAR}*)*"
_PATH_ABSOLUTE = f"/(?:{_PCHAR}+{_PATH_ABEMPTY})?"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}{_PATH_ABEMPTY}|{_PATH_ABSOLUTE}|{_PCHAR}+{_PATH_ABEMPTY}|){_TAIL}"
_RELATIVE = rf"(?://{_AUTHORITY}{_PATH_ABEMPTY}|{_PATH_ABSOLUTE}|{_SEGMENT_NO_COLON}{_PATH_ABEMPTY}|){_TAIL}"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": "(?:/(?:[^/~]|~[01])*)*",
}

ENFORCED = frozenset([*_PATTERNS, "hostname", "regex"])


@remembered(maxsize=64)
def format_machine(name: str) -> Machine:
    """The texts of format `name`, which must be in ENFORCED."""
    if name == "hostname":
        return with_length(compile_regex(_DOMAIN, search=False), 1, 253)
    if name == "regex":
        return _regexes()
    return compile_regex(_PATTERNS[name], search=False)


def _regexes() -> Machine:
    """Regexes that ECMA-262 and Python both take: groups, classes, quantifiers, anchors, lookaheads; no references.

    Groups nest, so this is a pushdown automaton; rule 0 is the alternatives between two parentheses.
    """
    nodes = Nodes()
    either, sequence, text = nodes.either, nodes.sequence, nodes.text
    inside = nodes.rule(0, True, 0, Spread(0, INFINITE, 1))
    counts = sequence([text("{"), _counts(nodes), text("}")])
    quantifier = sequence([either([_chars(nodes, "*+?"), counts]), nodes.optional(text("?"))])
    atom = either(
        [
            _chars(nodes, " !\"#%&',/0-9:;<=>@A-Z_`a-z~\u00a0-\U0010ffff"),
            text("-"),
            text("."),
            _escape(nodes),
            _class(nodes),
            sequence([text("("), nodes.optional(text("?:")), inside, text(")")]),
        ]
    )
    assertion = either(
        [_chars(nodes, "^$"), sequence([text("(?"), _chars(nodes, "=!"), inside, text(")")]), text(r"\b"), text(r"\B")]
    )
    row = nodes.loop(either([sequence([atom, nodes.optional(quantifier)]), assertion]), 0, INFINITE)
    body = sequence([row, nodes.loop(sequence([text("|"), row]), 0, INFINITE)])
    return TermMachine(nodes, body, [body])


def _counts(nodes: Nodes) -> Node:
    """`n`, `n,` and `n,m` with n <= m, of up to three digits: both languages refuse the others."""
    alone = nodes.either([nodes.text("0"), *(_numbers(nodes, size) for size in (1, 2, 3))])
    options = [alone, nodes.sequence([alone, nodes.text(",")]), nodes.sequence([nodes.text("0,"), alone])]
    for size in (1, 2, 3):
        longer = [_numbers(nodes, more) for more in range(size + 1, 4)]
        if longer:
            options.append(nodes.sequence([_numbers(nodes, size), nodes.text(","), nodes.either(longer)]))
        options.append(_ordered(nodes, size, ""))
    return nodes.either(options)


def _ordered(nodes: Nodes, size: int, read: str) -> Node:
    """The rest of `n,m` with n <= m, both of `size` digits, behind the first digits of n."""
    if len(read) == size:
        return nodes.sequence([nodes.text(","), _at_least(nodes, read)])
    digits = "0123456789" if read else "123456789"
    return nodes.either([nodes.sequence([nodes.text(d), _ordered(nodes, size, read + d)]) for d in digits])


def _numbers(nodes: Nodes, size: int) -> Node:
    return nodes.sequence([_chars(nodes, "1-9"), *[_chars(nodes, "0-9")] * (size - 1)])


def _at_least(nodes: Nodes, low: str) -> Node:
    """Numbers of as many digits that aren't smaller."""
    options = [nodes.text(low)]
    for at, digit in enumerate(low):
        if digit != "9":
            higher = nodes.chars(((ord(digit) + 1, ord("9")),))
            rest = [_chars(nodes, "0-9")] * (len(low) - at - 1)
            options.append(nodes.sequence([nodes.text(low[:at]), higher, *rest]))
    return nodes.either(options)


def _chars(nodes: Nodes, inside: str) -> Node:
    """The characters of a simple class: single ones and ranges, a backslash before a literal hyphen."""
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(inside):
        at += inside[at] == "\\"
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            ranges.append((ord(inside[at]), ord(inside[at + 2])))
            at += 3
        else:
            ranges.append((ord(inside[at]), ord(inside[at])))
            at += 1
    return nodes.either([nodes.chars(((low, high),)) for low, high in ranges])


def _escape(nodes: Nodes) -> Node:
    hexadecimal = _chars(nodes, "0-9A-Fa-f")
    return nodes.sequence(
        [
            nodes.text("\\"),
            nodes.either(
                [
                    _chars(nodes, r"dDwWsStnrfv.*+?()[]{}|^$/\\"),
                    nodes.text("-"),
                    nodes.sequence([nodes.text("x"), nodes.loop(hexadecimal, 2, 2)]),
                    nodes.sequence([nodes.text("u"), nodes.loop(hexadecimal, 4, 4)]),
                ]
            ),
        ]
    )


def _class(nodes: Nodes) -> Node:
    """A character class: plain members, ordered ranges of letters and digits, escapes."""
    text, sequence, either = nodes.text, nodes.sequence, nodes.either
    ranges = [
        sequence([text(f"{chr(low)}-"), nodes.chars(((low, high),))])
        for first, high in (("0", 0x39), ("A", 0x5A), ("a", 0x7A))
        for low in range(ord(first), high + 1)
    ]
    plain = _chars(nodes, " !\"#$%'()*+,./0-9:;<=>?@A-Z_`a-z{}\u00a0-\U0010ffff")
    members = nodes.loop(either([plain, _escape(nodes), *ranges]), 1, INFINITE)
    return sequence([text("["), nodes.optional(text("^")), members, nodes.optional(text("-")), text("]")])
