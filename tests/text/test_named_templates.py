"""Chat formats by llama.cpp's names: the prompt of one talk in each."""

from __future__ import annotations

import pytest
from imp_server.config import Config
from imp_server.core import ChatRequest, ConfigError
from imp_server.text.model import TextModel
from imp_server.text.templates import builtin_templates, is_ours
from imp_server.text.templates.named import named_templates

from tests.text.test_templates import TALK, said
from tests.toy import byte_tokenizer

EXACT = {
    "llama2-sys": "[INST] <<SYS>>\nBe nice.\n<</SYS>>\n\nHi [/INST]Hello!</s>[INST] Bye [/INST]",
    "llama2-sys-bos": "[INST] <<SYS>>\nBe nice.\n<</SYS>>\n\nHi [/INST]Hello!</s><s>[INST] Bye [/INST]",
    "llama2-sys-strip": "[INST] <<SYS>>\nBe nice.\n<</SYS>>\n\nHi [/INST]Hello!</s>[INST] Bye [/INST]",
    "mistral-v1": " [INST] Be nice.\n\nHi [/INST] Hello!</s> [INST] Bye [/INST]",
    "mistral-v3": "[INST] Be nice.\n\nHi[/INST] Hello!</s>[INST] Bye[/INST]",
    "mistral-v3-tekken": "[INST]Be nice.\n\nHi[/INST]Hello!</s>[INST]Bye[/INST]",
    "mistral-v7": "[SYSTEM_PROMPT] Be nice.[/SYSTEM_PROMPT][INST] Hi[/INST] Hello!</s>[INST] Bye[/INST]",
    "mistral-v7-tekken": "[SYSTEM_PROMPT]Be nice.[/SYSTEM_PROMPT][INST]Hi[/INST]Hello!</s>[INST]Bye[/INST]",
    "phi3": (
        "<|system|>\nBe nice.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\nBye<|en"
        "d|>\n<|assistant|>\n"
    ),
    "phi4": (
        "<|im_start|>system<|im_sep|>Be nice.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|><|im_s"
        "tart|>assistant<|im_sep|>Hello!<|im_end|><|im_start|>user<|im_sep|>Bye<|im_end|><|im_start"
        "|>assistant<|im_sep|>"
    ),
    "falcon3": "<|system|>\nBe nice.\n<|user|>\nHi\n<|assistant|>\nHello!\n<|user|>\nBye\n<|assistant|>\n",
    "zephyr": (
        "<|system|>\nBe nice.<|endoftext|>\n<|user|>\nHi<|endoftext|>\n<|assistant|>\nHello!<|endoftext|"
        ">\n<|user|>\nBye<|endoftext|>\n<|assistant|>\n"
    ),
    "monarch": ("<s>system\nBe nice.</s>\n<s>user\nHi</s>\n<s>assistant\nHello!</s>\n<s>user\nBye</s>\n<s>assistant\n"),
    "orion": "Human: Be nice.\n\nHi\n\nAssistant: </s>Hello!</s>Human: Bye\n\nAssistant: </s>",
    "openchat": (
        "Be nice.<|end_of_turn|>GPT4 Correct User: Hi<|end_of_turn|>GPT4 Correct Assistant: Hello!<"
        "|end_of_turn|>GPT4 Correct User: Bye<|end_of_turn|>GPT4 Correct Assistant:"
    ),
    "vicuna": "Be nice.\n\nUSER: Hi\nASSISTANT: Hello!</s>\nUSER: Bye\nASSISTANT:",
    "vicuna-orca": "SYSTEM: Be nice.\nUSER: Hi\nASSISTANT: Hello!</s>\nUSER: Bye\nASSISTANT:",
    "deepseek": (
        "Be nice.### Instruction:\nHi\n### Response:\nHello!\n<|EOT|>\n### Instruction:\nBye\n### Response:\n"
    ),
    "deepseek2": "Be nice.\n\nUser: Hi\n\nAssistant: Hello!<｜end▁of▁sentence｜>User: Bye\n\nAssistant:",
    "deepseek3": "Be nice.\n\n<｜User｜>Hi<｜Assistant｜>Hello!<｜end▁of▁sentence｜><｜User｜>Bye<｜Assistant｜>",
    "deepseek-ocr": "Be nice.HiHello!Bye",
    "command-r": (
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be nice.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|"
        "><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello!<|END_"
        "OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|><|START_OF_TUR"
        "N_TOKEN|><|CHATBOT_TOKEN|>"
    ),
    "chatglm3": ("[gMASK]sop<|system|>\n Be nice.<|user|>\n Hi<|assistant|>\n Hello!<|user|>\n Bye<|assistant|>"),
    "chatglm4": ("[gMASK]<sop><|system|>\nBe nice.<|user|>\nHi<|assistant|>\nHello!<|user|>\nBye<|assistant|>\n"),
    "glmedge": "<|system|>\nBe nice.<|user|>\nHi<|assistant|>\nHello!<|user|>\nBye<|assistant|>",
    "minicpm": "Be nice.<用户>Hi<AI>Hello!<用户>Bye<AI>",
    "exaone3": (
        "[|system|]Be nice.[|endofturn|]\n[|user|]Hi\n[|assistant|]Hello![|endofturn|]\n[|user|]Bye\n[|assistant|]"
    ),
    "exaone-moe": (
        "<|system|>\nBe nice.<|endofturn|>\n<|user|>\nHi<|endofturn|>\n<|assistant|>\nHello!<|endofturn|"
        ">\n<|user|>\nBye<|endofturn|>\n<|assistant|>\n"
    ),
    "rwkv-world": "System: Be nice.\n\nUser: Hi\n\nAssistant: Hello!\n\nUser: Bye\n\nAssistant:",
    "granite": (
        "<|start_of_role|>system<|end_of_role|>Be nice.<|end_of_text|>\n<|start_of_role|>user<|end_o"
        "f_role|>Hi<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>Hello!<|end_of_text|>\n<"
        "|start_of_role|>user<|end_of_role|>Bye<|end_of_text|>\n<|start_of_role|>assistant<|end_of_r"
        "ole|>"
    ),
    "gigachat": (
        "<s>Be nice.<|message_sep|>user<|role_sep|>Hi<|message_sep|>available functions<|role_sep|>"
        "[]<|message_sep|>assistant<|role_sep|>Hello!<|message_sep|>user<|role_sep|>Bye<|message_se"
        "p|>available functions<|role_sep|>[]<|message_sep|>assistant<|role_sep|>"
    ),
    "megrez": (
        "<|role_start|>system<|role_end|>Be nice.<|turn_end|><|role_start|>user<|role_end|>Hi<|turn"
        "_end|><|role_start|>assistant<|role_end|>Hello!<|turn_end|><|role_start|>user<|role_end|>B"
        "ye<|turn_end|><|role_start|>assistant<|role_end|>"
    ),
    "yandex": (" Пользователь: Be nice.\n\nHi\n\n Ассистент: Hello!\n\n Пользователь: Bye\n\n Ассистент:[SEP]"),
    "bailing": (
        "<role>SYSTEM</role>Be nice.<role>HUMAN</role>Hi<role>ASSISTANT</role>Hello!<role>HUMAN</ro"
        "le>Bye<role>ASSISTANT</role>"
    ),
    "bailing-think": (
        "<role>SYSTEM</role>Be nice.<role>HUMAN</role>Hi<role>ASSISTANT</role>Hello!<role>HUMAN</ro"
        "le>Bye<role>ASSISTANT</role><think>"
    ),
    "bailing2": (
        "<role>SYSTEM</role>Be nice.<|role_end|><role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</ro"
        "le>Hello!<|role_end|><role>HUMAN</role>Bye<|role_end|><role>ASSISTANT</role>"
    ),
    "llama4": (
        "<|header_start|>system<|header_end|>\n\nBe nice.<|eot|><|header_start|>user<|header_end|>\n\nH"
        "i<|eot|><|header_start|>assistant<|header_end|>\n\nHello!<|eot|><|header_start|>user<|header"
        "_end|>\n\nBye<|eot|><|header_start|>assistant<|header_end|>\n\n"
    ),
    "smolvlm": (
        "<|im_start|>Be nice.\n\nUser: Hi<end_of_utterance>\nAssistant: Hello!<end_of_utterance>\nUser:"
        " Bye<end_of_utterance>\nAssistant:"
    ),
    "hunyuan-moe": (
        "<|startoftext|>Be nice.<|extra_4|><|startoftext|>Hi<|extra_0|>Hello!<|eos|><|startoftext|>Bye<|extra_0|>"
    ),
    "gpt-oss": (
        "<|start|>system<|message|>Be nice.<|end|><|start|>user<|message|>Hi<|end|><|start|>assista"
        "nt<|message|>Hello!<|return|><|start|>user<|message|>Bye<|end|><|start|>assistant"
    ),
    "hunyuan-dense": (
        "Be nice.<｜hy_place▁holder▁no▁3｜><｜hy_User｜>Hi<｜hy_Assistant｜>Hello!<｜hy_place▁holder▁no▁2｜"
        "><｜hy_User｜>Bye<｜hy_Assistant｜>"
    ),
    "hunyuan-vl": (
        "<｜hy_begin▁of▁sentence｜>Be nice.<｜hy_place▁holder▁no▁3｜>Hi<｜hy_User｜>Hello!<｜hy_Assistant｜"
        ">Bye<｜hy_User｜>"
    ),
    "kimi-k2": (
        "<|im_system|>system<|im_middle|>Be nice.<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>Hello!<|im_end|><|im_user|>user<|im_middle|>Bye<|im_"
        "end|><|im_assistant|>assistant<|im_middle|>"
    ),
    "seed_oss": (
        "<seed:bos>system\nBe nice.<seed:eos><seed:bos>user\nHi<seed:eos><seed:bos>assistant\nHello!<s"
        "eed:eos><seed:bos>user\nBye<seed:eos><seed:bos>assistant\n"
    ),
    "grok-2": (
        "System: Be nice.<|separator|>\n\nHuman: Hi<|separator|>\n\nAssistant: Hello!<|separator|>\n\nHum"
        "an: Bye<|separator|>\n\nAssistant:"
    ),
    "pangu-embedded": (
        "[unused9]系统：Be nice.[unused10][unused9]用户：Hi[unused10][unused9]助手：Hello![unused10][unused9"
        "]用户：Bye[unused10][unused9]助手："
    ),
    "solar-open": (
        "<|begin|>system<|content|>Be nice.<|end|><|begin|>user<|content|>Hi<|end|><|begin|>assista"
        "nt<|content|>Hello!<|end|><|begin|>user<|content|>Bye<|end|><|begin|>assistant"
    ),
}
SAME = {"granite-4.0": "granite", "granite-4.1": "granite", "exaone4": "exaone3"}


def model(name: str) -> TextModel:
    return TextModel(
        byte_tokenizer(("<s>", "</s>")), {}, Config.of({"model.chat_template": name}), context_length=1 << 20
    )


def test_the_table_is_complete_and_ours() -> None:
    named = named_templates()
    assert set(named) == set(EXACT) | set(SAME) and not set(named) & set(builtin_templates())
    assert all(is_ours(source) for source in named.values())
    assert all(named[name] == named[other] for name, other in SAME.items())


@pytest.mark.parametrize("name", EXACT)
def test_exact_prompt(name: str) -> None:
    assert model(name).apply_template(ChatRequest(TALK)) == EXACT[name]


@pytest.mark.parametrize("name", ["command-r", "llama2-sys-strip", "llama4", "rwkv-world"])
def test_white_space_around_a_text_goes_where_the_format_says_so(name: str) -> None:
    talk = tuple(said(role, f" {text}\n") for role, text in [("system", "Be nice."), ("user", "Hi")])
    plain = tuple(said(role, text) for role, text in [("system", "Be nice."), ("user", "Hi")])
    assert model(name).apply_template(ChatRequest(talk)) == model(name).apply_template(ChatRequest(plain))


def test_a_talk_without_a_system_text_gets_the_formats_own_head() -> None:
    prompt = model("bailing2").apply_template(ChatRequest((said("user", "Hi"),)))
    assert prompt.startswith("<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>Hi")


def test_a_later_turn_begins_as_its_format_says() -> None:
    prompt = model("llama2-sys-bos").apply_template(ChatRequest(TALK))
    assert prompt.endswith("Hello!</s><s>[INST] Bye [/INST]")


def test_unknown_names_are_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="command-r"):
        model("comand-r")
