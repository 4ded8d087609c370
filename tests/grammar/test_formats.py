"""Formats against slow validators of their RFCs and, where it is right, jsonschema's FormatChecker."""

from __future__ import annotations

import calendar
import ipaddress
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.grammar.languages.formats import ENFORCED, format_machine
from imp_server.grammar.machines.explored import representatives
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.values.text_machines import length_bounded
from jsonschema.validators import Draft202012Validator

from tests.grammar.test_regex import accepted

CHECKER = Draft202012Validator.FORMAT_CHECKER


def is_date(text: str) -> bool:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    year, month, day = map(int, text.split("-"))
    return year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def is_time(text: str) -> bool:
    found = re.fullmatch(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?([zZ]|[+-]([0-9]{2}):([0-9]{2}))", text)
    if not found:
        return False
    hour, minute, second, _, _, off_hour, off_minute = found.groups()
    return (
        int(hour) < 24
        and int(minute) < 60
        and int(second) < 60
        and int(off_hour or 0) < 24
        and int(off_minute or 0) < 60
    )


def is_datetime(text: str) -> bool:
    return len(text) > 10 and text[10] in "tT" and is_date(text[:10]) and is_time(text[11:])


def is_ipv4(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 4 and all(re.fullmatch("0|[1-9][0-9]{0,2}", p) and int(p) < 256 for p in parts)


def is_ipv6(text: str) -> bool:
    try:
        return "%" not in text and bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def is_hostname(text: str) -> bool:
    labels = text.split(".")
    return len(text) <= 253 and all(
        0 < len(x) < 64 and re.fullmatch("[A-Za-z0-9-]+", x) and x[0] != "-" and x[-1] != "-" for x in labels
    )


def is_duration(text: str) -> bool:
    """RFC 3339, appendix A: a unit may be followed by the next smaller one only."""
    found = re.fullmatch(r"P((?:[0-9]+[YMDW])*)(T(?:[0-9]+[HMS])+)?", text)
    if not found or text in ("P", ""):
        return False
    date = re.sub("[0-9]", "", found[1])
    clock = re.sub("[0-9]", "", (found[2] or "")[1:])
    if date == "W":
        return not clock
    return date in "YMD" and clock in "HMS" and bool(date or clock)


def is_pointer(text: str) -> bool:
    return text == "" or (text[0] == "/" and not re.search("~(?![01])", text))


def is_uuid(text: str) -> bool:
    return [len(p) for p in text.split("-")] == [8, 4, 4, 4, 12] and bool(re.fullmatch("[0-9a-fA-F-]*", text))


SLOW: dict[str, Callable[[str], bool]] = {
    "date": is_date,
    "time": is_time,
    "date-time": is_datetime,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "hostname": is_hostname,
    "duration": is_duration,
    "json-pointer": is_pointer,
    "uuid": is_uuid,
}
SEEDS = {
    "date": ["2024-02-29", "1900-02-28", "2000-12-31", "2023-04-30", "0400-02-29", "0000-01-01"],
    "time": ["08:30:06Z", "23:59:59.25+23:59", "00:00:00-00:00", "23:59:60Z"],
    "date-time": ["2024-02-29T23:59:59Z", "1996-12-19t16:39:57.5-08:00"],
    "ipv4": ["192.168.0.1", "255.255.255.255", "0.0.0.0", "087.10.0.1"],
    "ipv6": ["::", "::1", "1:2:3:4:5:6:7:8", "1::8", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::"],
    "hostname": ["www.example.com", "a", "xn--4gbwdl.xn--wgbh1c", "a-b.c-d", "x" * 63 + ".y"],
    "duration": ["P4DT12H30M5S", "P1Y2M3D", "P2W", "PT36H", "P1Y", "P1DT12H"],
    "json-pointer": ["/foo/bar~0/baz~1/%a", "", "/", "/~1~0~0"],
    "uuid": ["2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
}


@pytest.mark.parametrize("name", sorted(SLOW))
def test_agrees_with_a_slow_validator(name: str) -> None:
    machine, slow = format_machine(name), SLOW[name]
    rng = random.Random(name)
    alphabet = sorted({c for seed in SEEDS[name] for c in seed} | set("0159-:.az/~"))
    wrong = []
    for _ in range(6000):
        text = list(rng.choice(SEEDS[name]))
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            at = rng.randrange(len(text) + 1)
            text[at : at + rng.randrange(2)] = [rng.choice(alphabet)] * rng.randrange(2)
        if accepted(machine, "".join(text)) != slow("".join(text)):
            wrong.append("".join(text))
    assert wrong == []


def random_word(machine: Machine, rng: random.Random, most: int) -> str:
    """A random walk, brought to its end by the shortest continuation."""
    samples = representatives(machine.classes)
    state, word = machine.start, b""
    for _ in range(rng.randrange(most)):
        steps = [(b, t) for b in samples if (t := machine.step(state, b)) != DEAD]
        if not steps:
            break
        byte, state = rng.choice(steps)
        word += bytes([byte])
    rest = machine.shortest(state)
    assert rest is not None
    return (word + rest).decode()


@pytest.mark.parametrize("name", sorted(ENFORCED))
def test_what_is_accepted_passes_the_format_checker(name: str) -> None:
    machine = format_machine(name)
    rng = random.Random(name)
    words = {random_word(machine, rng, 60) for _ in range(400)}
    assert len(words) > 30
    assert [w for w in words if not CHECKER.conforms(w, name)] == []


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("email", ["joe.bloggs@example.com", "te~st@a.b", '"joe@b"@example.com', "a@[127.0.0.1]", "a@[IPv6:::1]"],
         ["2962", ".t@a.b", "t.@a.b", "t..t@a.b", "a@invalid=domain.com", "a@[127.0.0.300]", "a@", "@a"]),
        ("uri", ["http://foo.bar/?baz=qux#quux", "http://foo.com/blah_(wikipedia)_blah#cite-1", "tel:+1-816-555-1212",
                 "http://-.~_!$&'()*+,;=:%40:80%2f::::::@example.com", "ldap://[2001:db8::7]/c=GB?objectClass?one",
                 "urn:oasis:names", "http://x:80/a//b", "file:///etc"],
         ["//foo.bar/", "/abc", "\\\\WINDOWS\\fileshare", "abc", "http:// shouldfail.com", ":// x", "bar,baz:foo",
          "http://[::1", "http://a/%zz", "http://ä.de"]),
        ("uri-reference", ["//foo.bar/?baz=qux#quux", "/abc", "abc", "#fragment", "", "a/b:c", "?q"],
         ["\\\\WINDOWS", "#frag\\ment", "a b", "1:b"]),
        ("regex", ["^[a-z]+(?:\\d{2,}|x)*$", "", "(a|b)?", "[^0-9]", "\\u00e9", "(?=a)b", "é{0,3}",
                   "a{1,2}", "[a-z]{2,2}?", "(ab){9,10}", "a{19,100}", "a{199,200}"],
         ["(", "a)", "[z-a]", "*a", "a**", "[", "\\", "(?<x>a)\\1", "a{3,1}", "a{20,19}", "a{101,100}", "a{01,2}"]),
        ("hostname", ["x" * 63, ".".join(["x" * 49] * 5)], ["x" * 64, ".".join(["x" * 50] * 5), "", ".", "a.", "a_b"]),
        ("time", ["08:30:06z"], ["23:59:60Z", "12:00:00", "24:00:00Z"]),
        ("uuid", ["00000000-0000-0000-0000-000000000000"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
    ],
)  # fmt: skip
def test_known_cases(name: str, yes: list[str], no: list[str]) -> None:
    machine = format_machine(name)
    assert [t for t in yes if not accepted(machine, t)] == []
    assert [t for t in no if accepted(machine, t)] == []


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(ENFORCED)), st.integers(0, 20), st.integers(0, 40), st.randoms(use_true_random=False))
def test_formats_with_lengths(name: str, low: int, more: int, rng: random.Random) -> None:
    """`regex` with a minimum as well is a product over the budget, and refused."""
    if name == "regex":
        low = 0
    machine = length_bounded(format_machine(name), low, low + more)
    if machine.start == DEAD:
        return
    word = random_word(machine, rng, 60)
    assert low <= len(word) <= low + more
    assert accepted(format_machine(name), word)


def test_counts_of_a_regex_are_in_order() -> None:
    machine = format_machine("regex")
    numbers = [0, 1, 2, 9, 10, 11, 19, 20, 99, 100, 101, 199, 200, 210, 998, 999]
    wrong = [(n, m) for n in numbers for m in numbers if accepted(machine, f"(a{{{n},{m}}})?") != (n <= m)]
    assert wrong == []
