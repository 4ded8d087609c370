"""Knobs of the model and of what it may write."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from imp_server.config.types import (
    Count,
    Fraction,
    OrModels,
    OrModelsCount,
    OrModelsShare,
    Penalty,
    Positive,
    Words,
)


class ModelSettings(msgspec.Struct, frozen=True):
    """Which model is served, and how its text is made."""

    path: Annotated[str, Meta(extra={"flag": "model"})] = ""
    """Name of the catalogue, file, folder, or hf:org/repo[:file]; empty = smollm2, none = start without a model."""
    revision: str = "main"
    """Revision of an hf: repository."""
    alias: str = ""
    """Names under which the model is served, the first as its id; * stands for any text. Empty = its own."""
    tags: Words = ()
    """Words that /v1/models tells of the model, for whoever chooses among several."""
    max_seq_len: Count = 0
    """Most tokens of prompt and answer together; 0 = what the model was trained for and memory holds."""
    chat_template: str = "auto"
    """auto (the model's own), none, chatml, llama3 or another name of docs/models.md, a Jinja file, or Jinja itself."""
    chat_template_kwargs: str = ""
    """JSON object of variables for the chat template, weaker than what a request says. enable_thinking counts as if
    requests had it."""
    context_shift: bool = False
    """An answer that reaches the end of the context goes on: what comes behind keep_tokens moves up, half of it is
    dropped. What is kept is computed anew."""
    keep_tokens: Annotated[int, Meta(ge=-1)] = 0
    """First tokens of a prompt that are never dropped, where the request doesn't say; -1 = all of it."""
    pooling: Literal["auto", "last", "mean", "none"] = "auto"
    """Embeddings: the last position's hidden state, the mean of all, or one vector per token (none, which only POST
    /embedding and /embeddings can tell). auto = as the file says, else last."""
    sampling_defaults: Literal["model", "original"] = "model"
    """Sampling of requests that say nothing: the model's own, or with repetition_penalty 1.05 as the original had."""


class SamplingSettings(msgspec.Struct, frozen=True):
    """Sampling of requests that don't say; -1 = the model's own."""

    temperature: OrModels = -1
    """0 = always the likeliest token."""
    top_k: OrModelsCount = -1
    """0 = off."""
    top_p: OrModelsShare = -1
    """1 = off."""
    min_p: OrModelsShare = -1
    """0 = off."""
    typical_p: OrModelsShare = -1
    """1 = off."""
    repetition_penalty: OrModels = -1
    """1 = off."""
    presence_penalty: Penalty = 0
    """0 = off."""
    frequency_penalty: Penalty = 0
    """0 = off."""
    seed: Annotated[int, Meta(ge=-1)] = -1
    """Seed of requests that send none; -1 = another one each time."""
    repeat_last_n: OrModelsCount = -1
    """Window of the three penalties in tokens; 0 = all of the answer."""
    dry_multiplier: OrModels = -1
    """0 = off."""
    dry_base: OrModels = -1
    """Of DRY's penalty, by token of a repetition."""
    dry_allowed_length: OrModelsCount = -1
    """Longest repetition that DRY lets pass."""
    dry_penalty_last_n: OrModelsCount = -1
    """Window of DRY in tokens; 0 = all."""
    mirostat: Annotated[int, Meta(ge=-1, le=2)] = -1
    """0 = off."""
    mirostat_tau: Annotated[float, Meta(ge=-1)] = -1
    """Surprise that mirostat aims at."""
    mirostat_eta: OrModels = -1
    """How fast mirostat learns."""
    dynatemp_range: OrModels = -1
    """How far the temperature may go from its value; 0 = off."""
    dynatemp_exponent: OrModels = -1
    """Of the entropy by which it goes."""
    top_n_sigma: OrModels = -1
    """0 = off."""
    xtc_probability: OrModelsShare = -1
    """0 = off."""
    xtc_threshold: OrModelsShare = -1
    """Least probability of a token that XTC may leave out."""


class AdapterSettings(msgspec.Struct, frozen=True):
    """LoRA adapters: files that change what a model computes, loaded with it and chosen per request."""

    lora: Words = ()
    """NAME=PATH of an adapter (a GGUF file, or a folder as PEFT saves it) that requests choose by its name; PATH alone
    is named by its file. Repeatable."""
    lora_scaled: Annotated[Words, Meta(extra={"flag": "lora_scaled"})] = ()
    """PATH:SCALE, or NAME=PATH:SCALE, of an adapter that counts by SCALE in requests that don't choose. Repeatable."""
    init_without_apply: Annotated[bool, Meta(extra={"flag": "lora_init_without_apply"})] = False
    """Load them with scales of 0, until POST /lora-adapters says others."""
    max_loaded: Positive = 8
    """Most adapters in memory."""


class GrammarSettings(msgspec.Struct, frozen=True):
    """Constrained answers: JSON schema, regex, GBNF."""

    key_order: Literal["any", "schema"] = "any"
    """Order of object keys: as the model likes, or as the schema lists them."""
    lenient: bool = False
    """Serve a schema with parts that can't be enforced: name them in a header, validate the finished text."""
    extra_properties: Literal["closed", "allow"] = "closed"
    """Keys that an answer's schema neither declares nor speaks of: left out, or allowed as the letter has it."""
    extra_arguments: bool = False
    """Let calls hold keys that a tool doesn't declare, where its schema says nothing of additionalProperties."""
    jump_ahead: bool = True
    """Take what the grammar forces without logits, or propose it as a draft; the tokens are the same either way."""
    length_steering: bool = True
    """Near max_tokens keep only tokens that lead to the end, so that an answer parses. Calls are cut as they stand."""
    max_whitespace: Count = 48
    """Most blanks in a row outside strings, after at most one newline; 0 is compact JSON, mostly forced text."""
    memory_mib: Positive = 256
    """MiB for states, machines and masks of all grammars; what no live reply stands on makes room."""


class ReasoningSettings(msgspec.Struct, frozen=True):
    """Thinking before the answer."""

    format: Literal["deepseek", "deepseek-legacy", "none"] = "deepseek"
    """deepseek = thinking in a field of its own; none = left in the text with its tags; deepseek-legacy = none in
    streams, deepseek else."""
    beside_tools: bool = False
    """Think by default beside tools and answers of a given form, too."""
    think_budget: Fraction = 0.5
    """Share of max_tokens that thinking may take; 0 = no thinking, 1 = no limit (the answer may then never begin)."""
    budget_tokens: Annotated[int, Meta(ge=-1)] = -1
    """Tokens that thinking may take, where the request doesn't say; -1 = as think_budget has it."""
    answer_reserve: Count = 256
    """Tokens of max_tokens that a share leaves to the answer at least, or half of them if that is less."""
    budget_message: str = ""
    """Put at the end of thinking that is closed by force."""
    scan_tokens: Count = 8
    """First tokens in which a think tag is looked for although thinking is off."""
    agent_scan_tokens: Count = 256
    """The same for requests with tools."""
