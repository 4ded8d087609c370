"""The chat formats that llama.cpp knows by name, beside those that are files here: what stands around each turn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class _Turns:
    """Each text holds {c}, the content; {R} is the role in capitals, {r} as it came."""

    user: str
    answer: str
    opener: str
    """What an answer is asked for with."""
    system: str = ""
    """ "" = its text stands before the next user turn's, with an empty line between."""
    tool: str = ""
    """ "" = as the user's."""
    head: str = ""
    headless: str = ""
    """What stands first where no system turn does."""
    trimmed: tuple[str, ...] = ()
    """Roles whose content loses the white space around it."""


@dataclass(frozen=True)
class _Instructions:
    """A system text stands inside the user's turn."""

    system: str
    close: str
    answer: str
    open: str = "[INST] "
    again: str = ""
    """How a later turn begins; "" = as the first."""
    trimmed: tuple[str, ...] = ()


_ALL = ("system", "user", "assistant", "tool")


def _alike(turn: str, opener: str, **rest: str | tuple[str, ...]) -> _Turns:
    return _Turns(turn, turn, opener, turn, turn, **rest)  # type: ignore[arg-type]


def _exaone(mark: str, *, line: str = "", ends: str = "", **rest: str) -> _Turns:
    def turn(role: str, end: str) -> str:
        return mark.replace("_", role) + line + "{c}" + end

    whole = mark.replace("_", "endofturn") + "\n"
    return _Turns(
        turn("user", ends or "\n"),
        turn("assistant", whole),
        mark.replace("_", "assistant") + line,
        turn("system", whole),
        turn("tool", whole),
        trimmed=_ALL,
        **rest,
    )


_GRANITE = _alike(
    "<|start_of_role|>{r}<|end_of_role|>{c}<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>"
)
_BAILING = _alike("<role>{R}</role>{c}", "<role>ASSISTANT</role>")
_FORMATS: dict[str, _Turns | _Instructions] = {
    "llama2-sys": _Instructions("<<SYS>>\n{c}\n<</SYS>>\n\n", " [/INST]", "{c}</s>"),
    "llama2-sys-bos": _Instructions("<<SYS>>\n{c}\n<</SYS>>\n\n", " [/INST]", "{c}</s>", again="<s>[INST] "),
    "llama2-sys-strip": _Instructions("<<SYS>>\n{c}\n<</SYS>>\n\n", " [/INST]", "{c}</s>", trimmed=_ALL),
    "mistral-v1": _Instructions("{c}\n\n", " [/INST]", " {c}</s>", open=" [INST] "),
    "mistral-v3": _Instructions("{c}\n\n", "[/INST]", " {c}</s>", trimmed=("assistant",)),
    "mistral-v3-tekken": _Instructions("{c}\n\n", "[/INST]", "{c}</s>", open="[INST]"),
    "mistral-v7": _Turns("[INST] {c}[/INST]", " {c}</s>", "", "[SYSTEM_PROMPT] {c}[/SYSTEM_PROMPT]"),
    "mistral-v7-tekken": _Turns("[INST]{c}[/INST]", "{c}</s>", "", "[SYSTEM_PROMPT]{c}[/SYSTEM_PROMPT]"),
    "phi3": _alike("<|{r}|>\n{c}<|end|>\n", "<|assistant|>\n"),
    "phi4": _alike("<|im_start|>{r}<|im_sep|>{c}<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "falcon3": _alike("<|{r}|>\n{c}\n", "<|assistant|>\n"),
    "zephyr": _alike("<|{r}|>\n{c}<|endoftext|>\n", "<|assistant|>\n"),
    "monarch": _alike("<s>{r}\n{c}</s>\n", "<s>assistant\n"),
    "orion": _Turns("Human: {c}\n\nAssistant: </s>", "{c}</s>", ""),
    "openchat": _Turns(
        "GPT4 Correct User: {c}<|end_of_turn|>",
        "GPT4 Correct Assistant: {c}<|end_of_turn|>",
        "GPT4 Correct Assistant:",
        "{c}<|end_of_turn|>",
    ),
    "vicuna": _Turns("USER: {c}\n", "ASSISTANT: {c}</s>\n", "ASSISTANT:", "{c}\n\n"),
    "vicuna-orca": _Turns("USER: {c}\n", "ASSISTANT: {c}</s>\n", "ASSISTANT:", "SYSTEM: {c}\n"),
    "deepseek": _Turns("### Instruction:\n{c}\n", "### Response:\n{c}\n<|EOT|>\n", "### Response:\n", "{c}"),
    "deepseek2": _Turns("User: {c}\n\n", "Assistant: {c}<｜end▁of▁sentence｜>", "Assistant:", "{c}\n\n"),
    "deepseek3": _Turns("<｜User｜>{c}", "<｜Assistant｜>{c}<｜end▁of▁sentence｜>", "<｜Assistant｜>", "{c}\n\n"),
    "deepseek-ocr": _alike("{c}", ""),
    "command-r": _Turns(
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{c}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{c}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{c}<|END_OF_TURN_TOKEN|>",
        trimmed=_ALL,
    ),
    "chatglm3": _alike("<|{r}|>\n {c}", "<|assistant|>", head="[gMASK]sop"),
    "chatglm4": _alike("<|{r}|>\n{c}", "<|assistant|>\n", head="[gMASK]<sop>"),
    "glmedge": _alike("<|{r}|>\n{c}", "<|assistant|>"),
    "minicpm": _Turns("<用户>{c}<AI>", "{c}", "", "{c}", trimmed=_ALL),
    "exaone3": _exaone("[|_|]"),
    "exaone4": _exaone("[|_|]"),
    "exaone-moe": _exaone("<|_|>", line="\n", ends="<|endofturn|>\n"),
    "rwkv-world": _Turns("User: {c}\n\n", "Assistant: {c}\n\n", "Assistant:", "System: {c}\n\n", trimmed=_ALL),
    "granite": _GRANITE,
    "granite-4.0": _GRANITE,
    "granite-4.1": _GRANITE,
    "gigachat": _Turns(
        "user<|role_sep|>{c}<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
        "assistant<|role_sep|>{c}<|message_sep|>",
        "assistant<|role_sep|>",
        "{c}<|message_sep|>",
        head="<s>",
    ),
    "megrez": _alike("<|role_start|>{r}<|role_end|>{c}<|turn_end|>", "<|role_start|>assistant<|role_end|>"),
    "yandex": _Turns(" Пользователь: {c}\n\n", " Ассистент: {c}\n\n", " Ассистент:[SEP]"),
    "bailing": _BAILING,
    "bailing-think": _alike("<role>{R}</role>{c}", "<role>ASSISTANT</role><think>"),
    "bailing2": _alike(
        "<role>{R}</role>{c}<|role_end|>",
        "<role>ASSISTANT</role>",
        headless="<role>SYSTEM</role>detailed thinking off<|role_end|>",
    ),
    "llama4": _alike(
        "<|header_start|>{r}<|header_end|>\n\n{c}<|eot|>", "<|header_start|>assistant<|header_end|>\n\n", trimmed=_ALL
    ),
    "smolvlm": _Turns(
        "User: {c}<end_of_utterance>\n",
        "Assistant: {c}<end_of_utterance>\n",
        "Assistant:",
        "{c}\n\n",
        head="<|im_start|>",
    ),
    "hunyuan-moe": _Turns("<|startoftext|>{c}<|extra_0|>", "{c}<|eos|>", "", "<|startoftext|>{c}<|extra_4|>"),
    "gpt-oss": _Turns(
        "<|start|>{r}<|message|>{c}<|end|>",
        "<|start|>assistant<|message|>{c}<|return|>",
        "<|start|>assistant",
        "<|start|>system<|message|>{c}<|end|>",
    ),
    "hunyuan-dense": _Turns(
        "<｜hy_User｜>{c}",
        "<｜hy_Assistant｜>{c}<｜hy_place▁holder▁no▁2｜>",
        "<｜hy_Assistant｜>",
        "{c}<｜hy_place▁holder▁no▁3｜>",
    ),
    "hunyuan-vl": _Turns(
        "{c}<｜hy_User｜>",
        "{c}<｜hy_Assistant｜>",
        "",
        "{c}<｜hy_place▁holder▁no▁3｜>",
        head="<｜hy_begin▁of▁sentence｜>",
    ),
    "kimi-k2": _Turns(
        "<|im_user|>user<|im_middle|>{c}<|im_end|>",
        "<|im_assistant|>assistant<|im_middle|>{c}<|im_end|>",
        "<|im_assistant|>assistant<|im_middle|>",
        "<|im_system|>system<|im_middle|>{c}<|im_end|>",
        "<|im_system|>tool<|im_middle|>{c}<|im_end|>",
    ),
    "seed_oss": _alike("<seed:bos>{r}\n{c}<seed:eos>", "<seed:bos>assistant\n", trimmed=("assistant",)),
    "grok-2": _Turns(
        "Human: {c}<|separator|>\n\n",
        "Assistant: {c}<|separator|>\n\n",
        "Assistant:",
        "System: {c}<|separator|>\n\n",
        trimmed=("system", "user", "tool"),
    ),
    "pangu-embedded": _Turns(
        "[unused9]用户：{c}[unused10]",
        "[unused9]助手：{c}[unused10]",
        "[unused9]助手：",
        "[unused9]系统：{c}[unused10]",
        "[unused9]工具：{c}[unused10]",
        headless="[unused9]系统：[unused10]",
    ),
    "solar-open": _alike("<|begin|>{r}<|content|>{c}<|end|>", "<|begin|>assistant"),
}


@cache
def named_templates() -> dict[str, str]:
    """Jinja source by name."""
    return {
        name: _instructions(one) if isinstance(one, _Instructions) else _turns(one) for name, one in _FORMATS.items()
    }


def _text(pattern: str, content: str = "text") -> str:
    """As an expression of Jinja."""
    known = {
        "{c}": content,
        "{r}": "message.role",
        "{R}": "('HUMAN' if message.role == 'user' else message.role | upper)",
    }
    parts = [repr(pattern)]
    for mark, expression in known.items():
        parts = [piece for part in parts for piece in _split(part, mark, expression)]
    return " ~ ".join(part for part in parts if part != "''") or "''"


def _split(part: str, mark: str, expression: str) -> list[str]:
    if not part.startswith("'"):
        return [part]
    pieces = part[1:-1].split(mark)
    found = [f"'{pieces[0]}'"]
    for piece in pieces[1:]:
        found += [expression, f"'{piece}'"]
    return found


def _content(trimmed: tuple[str, ...]) -> str:
    plain = "{%- set text = message.content or '' -%}"
    if trimmed:
        plain += "{%- if message.role in " + repr(list(trimmed)) + " -%}{%- set text = text | trim -%}{%- endif -%}"
    return plain


def _turns(format: _Turns) -> str:
    lines = ["{{- " + _text(format.head) + " -}}"] if format.head else []
    if format.headless:
        lines += ["{%- if messages[0].role != 'system' -%}{{- " + _text(format.headless) + " -}}{%- endif -%}"]
    lines += ["{%- set held = namespace(system='') -%}", "{%- for message in messages -%}", _content(format.trimmed)]
    lines += ["{%- if message.role == 'system' -%}"]
    if format.system:
        lines += ["{{- " + _text(format.system) + " -}}"]
    else:
        lines += ["{%- set held.system = held.system ~ text ~ '\\n\\n' -%}"]
    if format.tool:
        lines += ["{%- elif message.role == 'tool' -%}{{- " + _text(format.tool) + " -}}"]
    lines += ["{%- elif message.role == 'assistant' -%}{{- " + _text(format.answer) + " -}}"]
    lines += ["{%- else -%}{{- " + _text(format.user, "held.system ~ text") + " -}}{%- set held.system = '' -%}"]
    lines += ["{%- endif -%}", "{%- endfor -%}"]
    if format.opener:
        lines += ["{%- if add_generation_prompt -%}{{- " + _text(format.opener) + " -}}{%- endif -%}"]
    return "".join(lines)


def _instructions(format: _Instructions) -> str:
    opened = "{%- if not at.inside -%}{{- " + repr(format.open) + " if loop.first else "
    opened += repr(format.again or format.open) + " -}}{%- endif -%}"
    return "".join(
        (
            "{%- set at = namespace(inside=false) -%}{%- for message in messages -%}",
            _content(format.trimmed),
            "{%- if message.role == 'assistant' -%}{{- " + _text(format.answer) + " -}}{%- set at.inside = false -%}",
            "{%- else -%}" + opened,
            "{%- if message.role == 'system' -%}{{- " + _text(format.system) + " -}}{%- set at.inside = true -%}",
            "{%- else -%}{{- " + _text("{c}" + format.close) + " -}}{%- set at.inside = false -%}",
            "{%- endif -%}{%- endif -%}{%- endfor -%}",
        )
    )
