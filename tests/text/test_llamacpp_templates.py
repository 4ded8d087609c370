"""Template files of known models, as llama.cpp carries them, render as there; so do the variables that it gives.

The files come with the sources of llama-cpp-python, which the slow test fetches. The expected text is jinja2's own,
with the variables and messages that llama.cpp gives.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from imp_server.config import Config
from imp_server.core import ChatRequest, Message, ReasoningIntent, TextPart, Tool, ToolCall
from imp_server.models.opening import families_by_model_type
from imp_server.text.model import TextModel
from imp_server.text.template import ChatTemplate
from imp_server.text.template_traits import traits_of
from imp_server.text.templates import builtin_templates
from imp_server.text.templates.named import named_templates
from imp_server.text.thinking import think_tags
from imp_server.text.tools.base import mark
from imp_server.text.tools.formats import choose_format
from imp_server.vocab.end_tokens import TURN_MARKERS
from transformers.utils.chat_template_utils import render_jinja_template

from tests.asked import made
from tests.text.family_templates import NAMED, REWRITTEN, TOLD, UNSEEN, Rewritten
from tests.text.tools.spelled import HARMONY_TOKENS
from tests.text.tools.test_formats import Case as ToolCase
from tests.text.tools.test_formats import encode, read
from tests.toy import byte_tokenizer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": SCHEMA}}
]
QUESTION = {"role": "user", "content": "What's the weather in Paris?"}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
TALKS: dict[str, list[dict[str, Any]]] = {
    "question": [QUESTION],
    "talk": [
        {"role": "system", "content": "Be kind."}, QUESTION, {"role": "assistant", "content": "Sunny."}, QUESTION,
    ],
    "tools": [{"role": "system", "content": "Be kind."}, QUESTION],
    "results": [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "sunny"},
    ],
}  # fmt: skip
MORE_TALKS: dict[str, list[dict[str, Any]]] = {
    "answered": [QUESTION, {"role": "assistant", "content": "Sunny."}, QUESTION],
    "asked": [QUESTION],
}
NO_SYSTEM = {"google-gemma-2-2b-it"}
NO_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "google-gemma-2-2b-it", "llama-cpp-deepseek-r1", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct",
    "deepseek-ai-DeepSeek-V3.1",
}  # fmt: skip
"""imp teaches the tools itself (docs/llamacpp.md)."""
NO_CALLS = {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}
"""imp spells the calls of earlier turns, which these leave out."""
OWN_IDS = {"Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2", "meetkai-functionary-medium-v3.2"}
"""Ids or names that the template demands, where the client sent others."""
UNASKED = {"CohereForAI-c4ai-command-r-plus-tool_use", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"}
UNASKED |= {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use"}
"""They go through `tools` without asking whether there are any."""

UNSAID = {
    "Bielik-11B-v3.0-Instruct", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Qwen-QwQ-32B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
}  # fmt: skip
"""They ask whether thinking is off without a default for it: it is on, as there."""


def message(plain: dict[str, Any]) -> Message:
    calls = [
        ToolCall(c["id"], c["function"]["name"], json.dumps(c["function"]["arguments"]))
        for c in plain.get("tool_calls", ())
    ]
    content = (TextPart(plain["content"]),) if plain["content"] else ()
    return Message(
        plain["role"], content, tool_calls=tuple(calls), tool_call_id=plain.get("tool_call_id"), name=plain.get("name")
    )


def ours(model: TextModel, talk: str, **more: Any) -> str:
    tools = (Tool("weather", "Of a city", SCHEMA),) if talk in ("tools", "results", "asked") else ()
    return model.apply_template(made(ChatRequest, tuple(map(message, (TALKS | MORE_TALKS)[talk])), tools=tools, **more))


def theirs(source: str, talk: str, no_tools: list[Any] | None, **variables: Any) -> str:
    now = datetime.now()
    tools = TOOLS if talk in ("tools", "results") else no_tools
    given = {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}
    given["functions"] = json.dumps(TOOLS, indent=2) if tools else ""
    conversation = json.loads(json.dumps((TALKS | MORE_TALKS)[talk]))
    texts: Any = render_jinja_template(  # a tuple, whatever its annotation says
        [conversation],
        tools=None if tools is None else list(tools),
        chat_template=source,
        add_generation_prompt=True,
        **{**given, **variables},
    )
    return str(texts[0][0])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By name: llama.cpp's files, `tests: NAME` those that its test quotes."""
    found: dict[str, str] = {}
    with tarfile.open(download(tmp_path_factory, "llama-cpp-python", "--no-binary", "*.tar.gz")) as opened:
        for member in opened:
            if not re.search(r"/llama\.cpp/(models/templates/.*\.jinja|tests/test-chat-template\.cpp)$", member.name):
                continue
            content = opened.extractfile(member)
            assert content is not None
            text = content.read().decode()
            found |= quoted(text) if member.name.endswith(".cpp") else {Path(member.name).stem: text}
    return found


@pytest.fixture(scope="module")
def axolotl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`axolotl: NAME` -> the template."""
    with zipfile.ZipFile(download(tmp_path_factory, "axolotl", "--only-binary", "*.whl")) as wheel:
        names = [name for name in wheel.namelist() if re.search(r"chat_templates/templates/.*\.jinja$", name)]
        return {f"axolotl: {Path(name).stem}": wheel.read(name).decode() for name in names}


def download(factory: pytest.TempPathFactory, package: str, kind: str, pattern: str) -> Path:
    folder = factory.mktemp("packages")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind, ":all:", "-d", str(folder), package]
    if subprocess.run(pip, check=False).returncode:
        pytest.skip(f"the package index has no {package}")
    (archive,) = folder.glob(pattern)
    return archive


QUOTED = r'/\* \.name= \*/ ("(?:[^"\\]|\\.)*"),\s*/\* \.template_str= \*/ (?:U8C\()?("(?:[^"\\]|\\.)*")'


def quoted(source: str) -> dict[str, str]:
    """The templates of llama.cpp's own test, whose strings are spelled as Python's."""
    return {f"tests: {ast.literal_eval(name)}": ast.literal_eval(text) for name, text in re.findall(QUOTED, source)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_published_templates_think_call_and_end_as_is_known(files: dict[str, str], axolotl: dict[str, str]) -> None:
    files = files | axolotl
    for told in TOLD:
        source, tags = files[told.file], think_tags(files[told.file])
        assert (tags.open if tags else "") == told.thinks, told.file
        assert not told.calls or choose_format(source).name == told.calls, told.file
        assert ends_turns(source, told.end), told.file
        if told.calls and told.remembers_calls:
            model = TextModel(byte_tokenizer(), {"default": source}, Config())
            asked, shown = ours(model, "asked"), ours(model, "results")
            shown = shown.removeprefix(asked) if shown.startswith(asked) else shown.rpartition(QUESTION["content"])[2]
            for token in HARMONY_TOKENS if told.calls == "harmony" else ():
                shown = shown.replace(token, mark(token))
            calls, _ = read(ToolCase(told.calls, "", []), encode(shown), [], (Tool("weather", "", SCHEMA),))
            found = [(name, json.loads(arguments)) for name, arguments in calls]
            assert found == [("weather", {"city": "Paris"})], f"{told.file}: {shown}"


def ends_turns(source: str, end: str) -> bool:
    """An answer of before is followed by this, which ends an answer that is being made, too."""
    text = theirs(source, "answered", None, eos_token=end)
    closed = re.search(r"Sunny\.(?:\s|<\|END_[A-Z]+\|>)*" + re.escape(end), text)
    return closed is not None and end in TURN_MARKERS


def test_each_family_s_template_is_known_or_said_to_be_unseen() -> None:
    told = {family for told in (*TOLD, *REWRITTEN) for family in told.families}
    assert not UNSEEN & (told | NAMED.keys())
    assert told | NAMED.keys() | UNSEEN == families_by_model_type().keys()


@pytest.mark.parametrize("known", REWRITTEN, ids=lambda known: known.families[0])
def test_a_template_written_anew_talks_thinks_and_ends_as_the_published_one(known: Rewritten) -> None:
    said = [("system", "Be kind."), ("user", "Q"), ("assistant", "A"), ("user", "R")][0 if known.takes_system else 1 :]
    talk = [Message(role, (TextPart(text),)) for role, text in said]  # type: ignore[arg-type]
    tokenizer = byte_tokenizer(tuple(dict.fromkeys((known.bos or "<s>", known.end))))
    tokenizer.bos_id, tokenizer.eos_id = 256, 257 if known.bos != known.end else 256
    model = TextModel(tokenizer, {"default": known.template}, Config())
    assert model.apply_template(made(ChatRequest, tuple(talk))) == known.talk
    tags = think_tags(known.template)
    assert (tags.open if tags else "") == known.thinks
    assert not known.calls or choose_format(known.template).name == known.calls
    assert known.end in TURN_MARKERS or known.end == known.bos, "the file's own end of text counts anyway"
    if not known.takes_system:
        with_system = made(ChatRequest, (Message("system", (TextPart("Be kind."),)), *talk))
        assert "Be kind." in model.apply_template(with_system), "what a template refuses is said by the user"


@pytest.mark.parametrize(("named", "end"), sorted(set(NAMED.values())))
def test_a_named_template_ends_a_turn_as_is_known(named: str, end: str) -> None:
    assert ends_turns((builtin_templates() | named_templates())[named], end)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_files_of_known_models_render_as_there(files: dict[str, str]) -> None:
    whole = {name: source for name, source in files.items() if not name.startswith("tests: ")}
    assert len(whole) > 50
    for name, source in whole.items():
        model = TextModel(byte_tokenizer(), {"default": source}, Config())
        tokens = model.edge_tokens
        no_tools: list[Any] | None = [] if name in UNASKED else None
        for talk in TALKS:
            exceptions = (
                (talk in ("talk", "tools") and name in NO_SYSTEM)
                or (talk in ("tools", "results") and name in NO_TOOLS | UNASKED)
                or (talk == "results" and name in NO_CALLS | OWN_IDS)
            )
            if exceptions:
                ours(model, talk)  # it is rendered, in imp's way
                continue
            thinking = ours(model, talk, reasoning=ReasoningIntent(enabled=True))
            assert thinking == theirs(source, talk, no_tools, enable_thinking=True, **tokens), f"{name}: {talk}"
            if talk in ("question", "talk"):
                default = {"enable_thinking": True} if name in UNSAID else {}
                plain = ours(model, talk)
                assert plain == theirs(source, talk, no_tools, **default, **tokens), f"{name}: {talk} as the model does"


def test_variables_that_templates_of_known_models_expect() -> None:
    source = "{{ date_string }}|{{ datetime }}|{{ functions }}|{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, now=lambda: datetime(2026, 3, 4, 5, 6))
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages) == "04 Mar 2026|Mar 04 2026||hi"
    with_tools = template.render(messages, tools=TOOLS)
    assert json.loads(with_tools.split("|")[2]) == TOOLS
    assert template.render(messages, extra={"date_string": "then"}).startswith("then|"), "a request may say otherwise"
    assert traits_of(template).tools, "tools that a template shows as functions needn't be taught"


def test_a_template_that_goes_through_tools_unasked() -> None:
    unasked = "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "hi"}]
    assert ChatTemplate(unasked).render(messages) == "hi" and traits_of(ChatTemplate(unasked)).tools
    asked = "{% if tools is not none %}T{{ tools }}{% endif %}{{ messages[0].content }}"
    assert ChatTemplate(asked).render(messages) == "hi", "elsewhere no tools are none, as transformers says it"


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("not enable_thinking", True),
        ("enable_thinking", True),
        ("enable_thinking is defined and not enable_thinking", False),
        ("enable_thinking is defined and enable_thinking is false", False),
        ("enable_thinking is true", False),
        ("not enable_thinking | default(false)", False),
        ("not enable_thinking|d(true)", False),
    ],
)
def test_thinking_is_on_where_the_model_has_it_on(condition: str, said: bool) -> None:
    """Silence must not close the thinking of a model whose template only asks whether it is off."""
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
        "{% if " + condition + " %}{{ '</think>' if 'not' in '" + condition + "' else '!' }}{% endif %}"
    )
    assert traits_of(ChatTemplate(source)).wants_thinking_said is said
    model = TextModel(byte_tokenizer(), {"default": source}, Config())
    default = {"enable_thinking": True} if said else {}
    assert ours(model, "question") == theirs(source, "question", None, **default)
    if condition == "not enable_thinking":
        assert ours(model, "question").endswith("<think>")
        off = ours(model, "question", reasoning=ReasoningIntent(enabled=False))
        assert off.endswith("<think></think>")
