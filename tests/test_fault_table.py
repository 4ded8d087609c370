"""Which test keeps each known fault with reasoning, tools and structured answers away.

A fault is named by the number of its thread in the project that had it; without a project, by its number in the
list of faults of wire formats. The tests themselves explain what went wrong.
"""

# ruff: noqa: E501  (a fault and its test read best on one line)
from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TOOLS, MATRIX, LIVE = "dialects/test_tool_faults.py", "dialects/test_tool_matrix.py", "live/test_dialect_faults.py"
FORMATS, ENFORCE, BAD = (
    "text/tools/test_every_format.py",
    "text/tools/test_enforce.py",
    "live/test_constraint_faults.py",
)
SESSION, CHAT, MESSAGES = "text/test_output_session.py", "live/test_sdk_chat.py", "dialects/test_messages_events.py"
CONSTRAINED, GRAMMAR, SPECULATION = "engine/test_constrained.py", "grammar/test_faults.py", "engine/test_speculation.py"

FAULTS: dict[str, str] = {
    # reasoning
    "50 held text is flushed": f"{SESSION}::test_a_prefix_that_never_completes_is_flushed",
    "52 53 stop strings and think tags": f"{TOOLS}::test_faults_50_52_53_stop_strings_hold_back_neither_tags_nor_text",
    "56 which closer ends the thinking": f"{TOOLS}::test_fault_56_the_first_closer_ends_the_thinking_on_both_transports",
    "58 59 both names of reasoning": f"{TOOLS}::test_faults_58_59_reasoning_has_both_its_names_and_is_read_by_either",
    "92 95 blocks of thinking and tools": f"{MESSAGES}::test_fault_92_thinking_and_tool_are_blocks_0_and_1",
    "97 thinking is not ignored": "live/test_anthropic_messages.py::test_thinking_is_opt_in",
    "113 index of a reasoning item": "dialects/test_responses_events.py::test_fault_113_the_index_of_an_item_never_changes",
    "llamacpp 28182 the budget's end shows no tag": f"{TOOLS}::test_llamacpp_fault_23_no_tag_shows_when_the_budget_ends",
    "headers of channels are no text": "dialects/test_reasoning_channels.py::"
    "test_channels_keep_reasoning_and_answer_apart",
    "thinking after a tool's result": "dialects/test_reasoning_channels.py::test_a_model_that_thinks_after_a_tool_result",
    # tools
    "23 length wins over tool_calls": f"{MATRIX}::test_fault_23_a_cut_call_ends_with_length",
    "25 26 how calls finish": f"{MATRIX}::test_faults_25_26_how_a_call_ends_the_reply",
    "28 29 31 llamacpp 13774 first deltas": f"{TOOLS}::"
    "test_faults_28_29_31_llamacpp_27_each_call_is_introduced_once_and_numbered",
    "32 34 35 llamacpp 14101 cuts of arguments": f"{TOOLS}::"
    "test_faults_32_34_35_llamacpp_26_29_no_cut_loses_or_repeats_arguments",
    "openclaw 37658 38569 reading is monotonic": "text/tools/test_formats.py::test_garbage_never_raises",
    "37 no parameters": f"{LIVE}::test_fault_37_a_call_without_arguments_has_an_empty_object",
    "38 parallel_tool_calls false": f"{FORMATS}::test_fault_38_without_parallel_calls_a_call_ends_the_reply",
    "40 tools empty": f"{LIVE}::test_fault_40_no_tools_no_calls",
    "41 choice none": f"{FORMATS}::test_none_binds_nothing_and_reads_nothing",
    "43 44 calls without content": f"{TOOLS}::test_faults_43_44_a_call_may_be_sent_back_without_content",
    "46 llamacpp 20156 22389 namespaces": "dialects/test_responses_request.py::"
    "test_fault_46_llamacpp_32_namespaces_are_flattened_and_hosted_tools_skipped",
    "91 broken calls are no 500": f"{LIVE}::test_fault_91_a_call_of_broken_json_is_no_500",
    "94 tool_use and no empty text": f"{MESSAGES}::test_fault_94_a_call_is_tool_use_and_there_is_no_empty_text",
    "110 ids of calls": "dialects/test_responses_events.py::test_fault_110_call_ids_are_equal_in_every_event",
    "112 markup is never text": f"{LIVE}::test_faults_35_112_markup_of_calls_is_never_text",
    "llamacpp 26535 a named tool": f"{LIVE}::test_llamacpp_fault_18_a_named_tool_is_forced_or_refused",
    "llamacpp 26930 27580 patterns": f"{TOOLS}::test_llamacpp_faults_20_21_patterns_search_and_know_shorthand",
    "aichat 1296 nulls": f"{TOOLS}::test_llamacpp_fault_30_a_null_description_is_none",
    "llamacpp 23465 images in results": "dialects/test_responses_request.py::"
    "test_llamacpp_fault_33_an_image_in_a_tool_output_is_read_as_one",
    "llamacpp 22240 quotes of enums": f"{TOOLS}::test_llamacpp_fault_22240_strings_of_an_enum_have_no_quotes_of_their_own",
    "llamacpp 25895 25746 22314 xgrammar 680 many tools, one bad": f"{FORMATS}::"
    "test_faults_xgrammar_680_llamacpp_25895_25746_22314_many_tools_and_a_bad_one",
    "vllm 54808 44447 35936 39056 22132 forced in the template's notation": f"{TOOLS}::"
    "test_faults_54808_22132_xml_calls_are_forced_in_their_own_notation",
    "vllm 32006 two constraints at once": f"{FORMATS}::test_fault_32006_tools_beside_a_schema",
    "xgrammar 650 sglang 27336 misspelled closers": f"{ENFORCE}::"
    "test_fault_xgrammar_650_a_closer_is_spelled_to_its_end",
    "xgrammar 622 sections left out": f"{ENFORCE}::"
    "test_fault_xgrammar_622_kimi_calls_with_and_without_the_section_are_bound_and_read",
    "xgrammar 392 tags of several bytes a character": f"{FORMATS}::test_required_calls_a_tool_and_its_arguments_obey",
    "xgrammar 737 special tokens match by id": "grammar/test_envelopes.py::test_a_special_token_is_matched_by_id_alone",
    # structured answers
    "73 strict false": f"{TOOLS}::test_fault_73_a_schema_binds_whatever_strict_says",
    "74 119 llamacpp 12276 vllm 44012 the answer alone is bound": f"{TOOLS}::"
    "test_faults_74_119_llamacpp_24_a_schema_binds_the_answer_and_not_the_thinking",
    "llamacpp 19051 vllm 17313 17623 43920 47312 sglang 4574 bad constraints": f"{BAD}::"
    "test_faults_llamacpp_19051_vllm_17313_17623_43920_kekzl_1567_a_bad_constraint_is_a_400_and_nothing_else",
    "kekzl 1567 keywords are never dropped": f"{GRAMMAR}::test_what_cant_be_enforced_is_refused_by_keyword_and_pointer",
    "vllm 54003 work is bounded": "grammar/test_hostile.py::test_the_check_is_bounded",
    "vllm 38696 4093 llguidance 240 247 blanks": "grammar/test_whitespace.py::test_blanks_in_a_row",
    "vllm 8350 cut at max_tokens": "engine/test_steering.py::test_the_value_parses_at_any_limit_that_holds_the_shortest",
    "vllm 44006 36138 53046 46118 52620 53777 38106 drafts": f"{SPECULATION}::"
    "test_drafts_under_a_grammar_change_nothing_and_save_steps",
    "sglang 2025 2045 2216 549 forced text": f"{SPECULATION}::test_forced_text_is_cut_at_whole_characters_and_open_ends",
    "sglang 2414 masks of neighbours": f"{CONSTRAINED}::test_real_grammars_alone_together_and_mixed",
    "xgrammar 611 padded ids": "grammar/test_masks.py::test_padding_and_special_ids_are_never_allowed",
    "a broken mask ends its request": f"{CONSTRAINED}::test_a_mask_that_raises_fails_its_request_alone",
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_test_of_a_fault_exists(fault: str) -> None:
    path, _, name = FAULTS[fault].partition("::")
    assert re.search(rf"^def {name}\(", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE), FAULTS[fault]
