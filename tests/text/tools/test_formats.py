"""Every tool format: the calls in its notation, over every way to cut the text, and wherever it is cut off."""

# ruff: noqa: E501  (the cases read best on one line)
from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import OutputPlan, Segment, Tool
from imp_server.plan_walk import PlanWalker
from imp_server.text.tools.base import Args, CallBegins, CallEnds, CallPiece, Cut, mark, reader_text
from imp_server.text.tools.formats import all_formats, choose_format

TOOLS = (
    Tool(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
        },
    ),
    Tool(
        name="run",
        parameters={
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "o": {"type": "object"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "any": {},
                "flag": {"$ref": "#/$defs/flag"},
            },
            "$defs": {"flag": {"type": "boolean"}},
        },
    ),
    Tool(name="ping"),
)
CODE = "def f(x):\n    if x < 3:\n        return \"a</param\" + '</tool'\n\n\treturn x\n"
CODE_JSON = json.dumps(CODE)
ARGS = '{"city": "Zürich", "days": 3, "tags": ["a", {"b": null}]}'


@dataclass
class Case:
    format: str
    text: str
    calls: list[tuple[str, object]]
    around: str = ""
    """Visible answer text around the calls."""


WEATHER = ("get_weather", json.loads(ARGS))
CASES = [
    Case("hermes", f'Hi <tool_call>\n{{"name": "get_weather", "arguments": {ARGS}}}\n</tool_call>', [WEATHER], "Hi "),
    Case(
        "hermes",
        f'{mark("<tool_call>")}{{"name": "run", "arguments": {{"code": {CODE_JSON}}}}}{mark("</tool_call>")}'
        f'{mark("<tool_call>")}{{"name": "ping"}}{mark("</tool_call>")}',
        [("run", {"code": CODE}), ("ping", {})],
    ),
    Case("hermes", '<tool_call>{"name":"ping","arguments":{}}<tool_call>{"name":"ping"}</tool_call>', [("ping", {})] * 2),
    Case("hermes", '<tool_call>{"name":"run","arguments":{"code":"a</tool_call>b"}}</tool_call>!', [("run", {"code": "a</tool_call>b"})], "!"),
    Case(
        "qwen_xml",
        f"A<tool_call>\n<function=run>\n<parameter=code>\n{CODE}\n</parameter>\n<parameter=o>\n"
        '{"k": [1]}\n</parameter>\n</function>\n</tool_call>B',
        [("run", {"code": CODE, "o": {"k": [1]}})],
        "AB",
    ),
    Case(
        "qwen_xml",
        "<tool_call><function=get_weather><parameter=city>Bern</parameter><parameter=days>7</parameter>"
        "</function></tool_call><tool_call>\n<function=ping>\n</function>\n</tool_call>",
        [("get_weather", {"city": "Bern", "days": 7}), ("ping", {})],
    ),
    Case("llama3_json", f'{{"name": "get_weather", "parameters": {ARGS}}}', [WEATHER]),
    Case("llama3_json", f'{mark("<|python_tag|>")}{{"name": "get_weather", "parameters": {ARGS}}} then', [WEATHER]),
    Case("llama3_json", f'{mark("<|python_end|>")}{{"name": "get_weather", "parameters": {ARGS}}}', [WEATHER]),
    Case("llama3_json", '{"name": "somebody", "age": 3}', [], '{"name": "somebody", "age": 3}'),
    Case("llama3_function", f"ok <function=get_weather>{ARGS}</function>", [WEATHER], "ok "),
    Case("llama3_function", "<function=ping></function>", [("ping", {})]),
    Case("mistral", f'{mark("[TOOL_CALLS]")}[{{"name": "get_weather", "arguments": {ARGS}, "id": "abc123def"}}]', [WEATHER]),
    Case(
        "mistral",
        f'{mark("[TOOL_CALLS]")}get_weather{mark("[CALL_ID]")}abc{mark("[ARGS]")}{ARGS}{mark("[TOOL_CALLS]")}ping{mark("[ARGS]")}{{}}',
        [WEATHER, ("ping", {})],
    ),
    Case(
        "gemma",
        'x<|tool_call>call:get_weather{city:<|"|>Zürich, "Alt"<|"|>,days:3,tags:[<|"|>a<|"|>,{b:null}]}<tool_call|>y',
        [("get_weather", {"city": 'Zürich, "Alt"', "days": 3, "tags": ["a", {"b": None}]})],
        "xy",
    ),
    Case("gemma", f'{mark("<|tool_call>")}call:ping{{}}{mark("<tool_call|>")}', [("ping", {})]),
    Case(
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{ARGS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [WEATHER, ("ping", {})],
    ),
    Case(
        "deepseek",
        f"{mark('<｜tool▁calls▁begin｜>')}{mark('<｜tool▁call▁begin｜>')}get_weather{mark('<｜tool▁sep｜>')}{ARGS}"
        f"{mark('<｜tool▁call▁end｜>')}{mark('<｜tool▁calls▁end｜>')}",
        [WEATHER],
    ),
    Case(
        "glm",
        "a<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Genève\n2</arg_value>\n<arg_key>days</arg_key>\n"
        '<arg_value>4</arg_value>\n<arg_key>tags</arg_key><arg_value>["x"]</arg_value></tool_call>b',
        [("get_weather", {"city": "Genève\n2", "days": 4, "tags": ["x"]})],
        "ab",
    ),
    Case("glm", "<tool_call>ping\n</tool_call>", [("ping", {})]),
    Case(
        "cohere",
        f'{mark("<|START_ACTION|>")}[\n  {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {ARGS}}},\n'
        f'  {{"tool_call_id": "1", "tool_name": "ping", "parameters": {{}}}}\n]{mark("<|END_ACTION|>")}',
        [WEATHER, ("ping", {})],
    ),
    Case("phi", f'<|tool_call|>[{{"name": "get_weather", "arguments": {ARGS}}}]<|/tool_call|>', [WEATHER]),
    Case("phi", f'functools[{{"name": "get_weather", "arguments": {ARGS}}}]', [WEATHER]),
    Case("granite", f'<|tool_call|>[{{"name": "get_weather", "arguments": {ARGS}}}, {{"name": "ping"}}]', [WEATHER, ("ping", {})]),
    Case(
        "harmony",
        f"{mark('<|channel|>')}commentary to=functions.get_weather {mark('<|constrain|>')}json{mark('<|message|>')}{ARGS}{mark('<|call|>')}",
        [WEATHER],
    ),
    Case(
        "kimi",
        f'a<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{ARGS}<|tool_call_end|>'
        "<|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>b",
        [WEATHER, ("ping", {})],
        "ab",
    ),
    Case(
        "kimi",
        f"{mark('<|tool_call_begin|>')}functions.run:7{mark('<|tool_call_argument_begin|>')}"
        f'{{"code": {json.dumps("<|tool_call_end|>")}}}{mark("<|tool_call_end|>")}',
        [("run", {"code": "<|tool_call_end|>"})],
    ),
    Case(
        "seed",
        "A<seed:tool_call>\n<function=run>\n<parameter=code>x = '</param' < 3</parameter>\n<parameter=o>{}</parameter>\n"
        "</function>\n</seed:tool_call>B",
        [("run", {"code": "x = '</param' < 3", "o": {}})],
        "AB",
    ),
    Case(
        "minimax",
        'A<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Köln "Süd"</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="ping">\n</invoke>\n</minimax:tool_call>B',
        [("get_weather", {"city": 'Köln "Süd"', "days": 2}), ("ping", {})],
        "AB",
    ),
    Case(
        "minicpm",
        'A<function name="run"><param name="code"><![CDATA[<a href="x">&</a></param></function>]]></param>'
        '<param name="o">{"k": "</param></function>"}</param></function>\n<function name="ping"></function>B',
        [("run", {"code": '<a href="x">&</a></param></function>', "o": {"k": "</param></function>"}}), ("ping", {})],
        "A\nB",
    ),
    Case("minicpm", '<function name="get_weather"><param name="city">Bern</param><param name="days">7</function>!', [("get_weather", {"city": "Bern", "days": 7})], "!"),
    Case(
        "glm",
        '<tool_call>run\n<arg_key>o</arg_key>\n<arg_value>{"a": "</arg_value>\\n</tool_call><arg_key>\\""}</arg_value>\n</tool_call>!',
        [("run", {"o": {"a": '</arg_value>\n</tool_call><arg_key>"'}})],
        "!",
    ),
    Case("glm", '<tool_call>run\n<arg_key>code</arg_key>\n<arg_value>{"a\n</arg_value>\n</tool_call>!', [("run", {"code": '{"a\n'})], "!"),
    Case("glm", '<tool_call>run\n<arg_key>o</arg_key>\n<arg_value>{"a</arg_value>\n</tool_call>!', [("run", {"o": '{"a</arg_value>\n'})], "!"),
    Case(
        "gemma",
        'x<|tool_call>call:run{o:{"</tool_call>":["<tool_call|>",<|"|><tool_call|>"<|"|>]},code:<|"|><tool_call|><|"|>}<tool_call|>y',
        [("run", {"o": {"</tool_call>": ["<tool_call|>", '<tool_call|>"']}, "code": "<tool_call|>"})],
        "xy",
    ),
    Case("gemma", '<|tool_call>call:run{note:None,any:[True]}<tool_call|>', [("run", {"note": None, "any": [True]})]),
    Case(
        "qwen_xml",
        '<tool_call>\n<function=run>\n<parameter=o>\n{"a": "</function></tool_call>"}\n</parameter>\n<parameter=note>\n"n"\n</parameter>\n'
        '<parameter=any>\n"</function></tool_call>"\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n</function>\n</tool_call>!',
        [("run", {"o": {"a": "</function></tool_call>"}, "note": '"n"', "any": "</function></tool_call>", "flag": True})],
        "!",
    ),
    Case("seed", "<seed:tool_call>\n<function=run>\n<parameter=note>null</parameter>\n</function>\n</seed:tool_call>", [("run", {"note": None})]),
    Case("seed", "<seed:tool_call>\n<function=run>\n<parameter=note>nul</parameter>\n</function>\n</seed:tool_call>", [("run", {"note": "nul"})]),
    Case("kimi", "a<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>b", [("ping", {})], "ab"),
    Case("jamba", f'A<tool_calls>[{{"name": "get_weather", "arguments": {ARGS}}}, {{"name": "ping"}}]</tool_calls>B', [WEATHER, ("ping", {})], "AB"),
]  # fmt: skip


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def read(
    case: Case, data: bytes, cuts: list[int], tools: tuple[Tool, ...] = TOOLS
) -> tuple[list[tuple[str, str]], str]:
    """Calls (name, arguments text) and answer text of `data` cut into tokens at `cuts`."""
    found, answer = pieces_of(case, data, cuts, tools)
    return collect(found), answer


def pieces_of(case: Case, data: bytes, cuts: list[int], tools: tuple[Tool, ...] = TOOLS) -> tuple[list[CallPiece], str]:
    form = all_formats()[case.format]
    edges = [0, *cuts, len(data)]
    table = [data[a:b] for a, b in pairwise(edges)]
    plan = OutputPlan(segments=(Segment("answer"), *form.segments(tools, 0, 1)), max_tokens=10**6)
    walker = PlanWalker(plan, table)
    pieces = [p for i in range(len(table)) if not walker.end for p in walker.push(i)] + walker.finish()
    found: list[CallPiece] = []
    answer, reader, held = b"", None, b""
    for piece in pieces:
        if piece.kind == "open":
            found += reader.close(closed=False) if reader else []
            reader, held = form.reader(tools, piece.segment - 1, reader_text(piece.data)), b""
        elif piece.kind == "close" and reader:
            found += reader.close(closed=True)
            reader = None
        elif piece.segment == 0:
            answer += piece.data
        elif reader:
            held += piece.data
            whole = whole_characters(held)
            found += reader.feed(reader_text(held[:whole]))
            held = held[whole:]
    found += reader.close(closed=False) if reader else []
    return found, answer.decode(errors="replace")


def whole_characters(data: bytes) -> int:
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead in (0xFE, 0xFF) or lead < 0x80:
            return len(data)
        if lead >= 0xC0:
            need = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return len(data) if need <= back else len(data) - back
    return len(data)


def collect(pieces: list[CallPiece]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    is_open = False
    for piece in pieces:
        if isinstance(piece, CallBegins):
            assert not is_open
            calls.append((piece.name, ""))
            is_open = True
        elif isinstance(piece, Args):
            assert is_open
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
        elif is_open:
            is_open = False
        else:
            assert isinstance(piece, Cut), "a call may be cut before its name"
    assert not is_open
    return calls


def endings(pieces: list[CallPiece]) -> list[bool]:
    """For each named call whether it is whole."""
    found: list[bool] = []
    for piece in pieces:
        if isinstance(piece, CallBegins):
            found.append(False)
        elif isinstance(piece, CallEnds):
            found[-1] = True
    return found


IDS = [f"{c.format}-{i}" for i, c in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_calls_and_text(case: Case) -> None:
    calls, answer = read(case, encode(case.text), [])
    assert [(n, json.loads(a)) for n, a in calls] == case.calls
    assert answer == case.around


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_cut_gives_the_same(case: Case) -> None:
    data = encode(case.text)
    whole = read(case, data, [])
    special_inside = [i for i in range(1, len(data)) if data.rfind(b"\xff", 0, i) <= data.rfind(b"\xfe", 0, i)]
    assert len(special_inside) > 5
    assert read(case, data, special_inside) == whole
    for cut in special_inside:
        assert read(case, data, [cut]) == whole


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_wherever_the_text_ends_calls_are_whole_or_cut_and_never_completed(case: Case) -> None:
    data = encode(case.text)
    whole = read(case, data, [])[0]
    ends = [n for n in range(len(data)) if data.rfind(b"\xff", 0, n) <= data.rfind(b"\xfe", 0, n)]
    assert len(ends) > 5
    for end in ends:
        pieces, _ = pieces_of(case, data[:end], [])
        calls = collect(pieces)
        assert [name for name, _ in calls] == [name for name, _ in whole[: len(calls)]]
        for (_, arguments), (_, meant), is_whole in zip(calls, whole, endings(pieces), strict=False):
            assert arguments == meant if is_whole else meant.startswith(arguments)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=4), st.booleans(), st.data())
def test_hypothesis_arguments_come_back(arguments: dict[str, object], ascii_only: bool, data: st.DataObject) -> None:
    text = json.dumps({"name": "ping", "arguments": arguments}, ensure_ascii=ascii_only)
    raw = f"<tool_call>{text}</tool_call>".encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=10)))
    calls, answer = read(Case("hermes", "", []), raw, cuts)
    assert [(n, json.loads(a)) for n, a in calls] == [("ping", arguments)]
    assert answer == ""


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60), st.data())
def test_qwen_xml_text_is_byte_exact(code: str, data: st.DataObject) -> None:
    if "\n</parameter>" in "\n" + code + "\n":
        return
    raw = f"<tool_call>\n<function=run>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>".encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=10)))
    calls, _ = read(Case("qwen_xml", "", []), raw, cuts)
    assert [(n, json.loads(a)) for n, a in calls] == [("run", {"code": code})]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(all_formats())), st.text(alphabet='{}[]",:<>|/tcaln_ \n\\u1=', max_size=40))
def test_garbage_never_raises(form: str, text: str) -> None:
    for closed in (False, True):
        reader = all_formats()[form].reader(TOOLS, 0, "<tool_call>")
        pieces = [*[p for c in text for p in reader.feed(c)], *reader.close(closed=closed)]
        for (name, arguments), is_whole in zip(collect(pieces), endings(pieces), strict=True):
            assert isinstance(name, str)
            assert not is_whole or isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% for t in tools %}<tool_call>{% endfor %}", "hermes"),
        ("<tool_call><function=x><parameter=y>", "qwen_xml"),
        ("<|channel|> to=functions.", "harmony"),
        ("[TOOL_CALLS]", "mistral"),
        ("<tool_call>..<arg_key>", "glm"),
        ("<|START_ACTION|>", "cohere"),
        ("no tools here", "hermes"),
        ('<|eot_id|> {"name": x, "parameters": y}', "llama3_json"),
        ('<|eot|> {"name": x, "parameters": y}', "llama3_json"),
        ("<|tool_call|>..<|/tool_call|>", "phi"),
        ("<|tool_call|>", "granite"),
        ("<｜tool▁call▁begin｜>", "deepseek"),
        ("<|tool_call>", "gemma"),
        ("<function=example>", "llama3_function"),
        ("<|tool_call_begin|>..<|tool_call_argument_begin|>", "kimi"),
        ("<seed:tool_call><function=x><parameter=y>", "seed"),
        ("<minimax:tool_call><invoke name=", "minimax"),
        ("<tool_calls>", "jamba"),
        ('<tools><function name="x"><param name="y">', "minicpm"),
    ],
)
def test_the_template_chooses(template: str, form: str) -> None:
    assert choose_format(template).name == form
