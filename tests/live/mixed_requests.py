"""Random requests of every dialect and kind, and replies reduced to what company and caches must not change."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

Json = dict[str, Any]
CHAT, COMPLETIONS, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SHARED = "".join(f"Rule {i}: never feed animal number {i * 7 % 101} before noon. " for i in range(5))
SYSTEMS = [SHARED, SHARED[:-31], SHARED[:90], ""]
QUESTIONS = [
    "Why?",
    "abc abc abc abc abc abc",
    "Name a colour. Name a river. Name a colour. Name",
    "Copy: 17, 18, 19, 20",
]
STOPS = [["kl", " the"], ["\n", "q"], ["e"], [". ", "mm", "zz"]]
SAMPLINGS: list[Json] = [
    {"temperature": 0},
    {"temperature": 0, "frequency_penalty": 0.4},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_p": 1},
]
MORE_SAMPLINGS: list[Json] = [  # of the routes that take them
    {"temperature": 0.9, "top_k": 20, "min_p": 0.02},
    {"temperature": 0.8, "repeat_penalty": 1.2},
    {"temperature": 0.8, "mirostat": 2},
    {"temperature": 0, "dry_multiplier": 0.8},
    {"temperature": 0.7, "typical_p": 0.9},
]
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["cat", "dog", "cow"]},
        "is_old": {"type": "boolean"},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}


class Wanted(NamedTuple):
    path: str
    body: Json
    leaves_after: int | None = None
    """The client goes away after so many events of a stream, else after as many twentieths of a second."""

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


def requests(seed: int, n: int) -> list[Wanted]:
    """All kinds in turn, their details at random; as many different ones as asked for."""
    rng = Random(seed)
    kinds = (chat, structured, tools, chat, completion, native, message, response, chat, echo)
    return [kinds[number % len(kinds)](rng) for number in range(n)]


def chat(rng: Random) -> Wanted:
    body: Json = {"messages": turns(rng)} | _sampling(rng, SAMPLINGS + MORE_SAMPLINGS)
    if rng.random() < 0.5:
        body |= {"logprobs": True, "top_logprobs": rng.randrange(4)}
    if rng.random() < 0.4:
        body["n"] = rng.randint(2, 3)
    if rng.random() < 0.3:
        body["stop"] = rng.choice(STOPS)
    if rng.random() < 0.2:
        body["logit_bias"] = {str(rng.randrange(20, 90)): rng.choice([4, -100]) for _ in range(3)}
    if rng.random() < 0.2:
        body["cache_prompt"] = True
    return _streamed(rng, CHAT, body)


def structured(rng: Random) -> Wanted:
    wanted = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
    body: Json = {"messages": turns(rng), "response_format": rng.choice([wanted, wanted, {"type": "json_object"}])}
    body |= _sampling(rng, SAMPLINGS + MORE_SAMPLINGS, rng.randint(30, 70))
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": 1}
    if rng.random() < 0.3:
        body["n"] = 2
    return _streamed(rng, CHAT, body)


def tools(rng: Random) -> Wanted:
    function = {"name": "feed", "description": "Feeds an animal.", "parameters": SCHEMA}
    other = {"name": "ping", "description": "Nothing.", "parameters": {"type": "object", "properties": {}}}
    body: Json = {
        "messages": turns(rng),
        "tools": [{"type": "function", "function": each} for each in (function, other)],
        "tool_choice": rng.choice(["auto", "required", {"type": "function", "function": {"name": "feed"}}]),
    }
    return _streamed(rng, CHAT, body | _sampling(rng, SAMPLINGS, rng.randint(50, 90)))


def completion(rng: Random) -> Wanted:
    body: Json = {"prompt": rng.choice(SYSTEMS) + rng.choice(QUESTIONS)} | _sampling(rng, SAMPLINGS + MORE_SAMPLINGS)
    if rng.random() < 0.5:
        body["logprobs"] = rng.randint(1, 3)
    if rng.random() < 0.5:
        body["n"] = 2
    if rng.random() < 0.3:
        body["stop"] = rng.choice(STOPS)
    return _streamed(rng, COMPLETIONS, body)


def echo(rng: Random) -> Wanted:
    """With the prompt's logprobs, which are computed in pieces and never come from the cache."""
    body = {"prompt": SHARED[rng.randrange(40) :][:150], "echo": True, "logprobs": 2}
    return Wanted(COMPLETIONS, body | _sampling(rng, SAMPLINGS, rng.randint(1, 8)))


def native(rng: Random) -> Wanted:
    body: Json = {"prompt": [rng.randrange(20, 200) for _ in range(rng.randint(1, 60))] + list(range(20, 60))}
    body |= {"return_tokens": True, "n_predict": rng.randint(4, 32), "seed": rng.randrange(99)}
    body |= rng.choice(SAMPLINGS + MORE_SAMPLINGS)
    if rng.random() < 0.5:
        body["n_probs"] = 2
    if rng.random() < 0.3:
        body["grammar"] = 'root ::= [a-f]+ " " [0-9]'
    return _streamed(rng, NATIVE, body)


def message(rng: Random) -> Wanted:
    system: list[Json] = [{"type": "text", "text": SHARED}]
    if rng.random() < 0.5:
        system[0]["cache_control"] = {"type": "ephemeral"}
    body: Json = {"system": system, "messages": turns(rng)[-1:]} | _sampling(rng, SAMPLINGS[2:])
    if rng.random() < 0.5:
        body["stop_sequences"] = rng.choice(STOPS[2:])
    return _streamed(rng, MESSAGES, body)


def response(rng: Random) -> Wanted:
    body: Json = {"input": turns(rng)[-1:], "instructions": rng.choice(SYSTEMS) or "Be brief."}
    body |= _sampling(rng, SAMPLINGS[2:])
    body["max_output_tokens"] = body.pop("max_tokens")
    return _streamed(rng, RESPONSES, body)


def turns(rng: Random) -> list[Json]:
    system, question = rng.choice(SYSTEMS), rng.choice(QUESTIONS) + " Q" * rng.randrange(3)
    first = [{"role": "system", "content": system}] if system else []
    past = [{"role": "user", "content": "Begin."}, {"role": "assistant", "content": "So be it."}]
    return [*first, *(past if rng.random() < 0.3 else []), {"role": "user", "content": question}]


def predicted(wanted: Wanted, reply: Any) -> Wanted | None:
    """The request with its own reply as prediction, but for a hole in the middle; None if it has no text."""
    texts = [value for path, value in _texts(reply).items() if path[-1] == "content"]
    if wanted.path != CHAT or "tools" in wanted.body or not texts or len(texts[0]) < 8:
        return None
    half = len(texts[0]) // 2
    text = texts[0][:half] + texts[0][half + 2 :]
    return wanted._replace(body=wanted.body | {"prediction": {"type": "content", "content": text}})


def _sampling(rng: Random, among: list[Json], n_tokens: int = 0) -> Json:
    return {"max_tokens": n_tokens or rng.randint(3, 32), "seed": rng.randrange(99)} | rng.choice(among)


def _streamed(rng: Random, path: str, body: Json) -> Wanted:
    if rng.random() < 0.5:
        return Wanted(path, body)
    more = {"stream_options": {"include_usage": True}} if path in (CHAT, COMPLETIONS) else {}
    return Wanted(path, body | {"stream": True} | more)


# --- replies --------------------------------------------------------------------------------------

_LEFT_OUT = {"id", "item_id", "response_id", "call_id", "created", "created_at", "completed_at", "sequence_number"}
_LEFT_OUT |= {"cached_tokens", "cache_write_tokens", "evicted_tokens", "cache_creation", "tokens_cached", "id_slot"}
_LEFT_OUT |= {"accepted_prediction_tokens", "rejected_prediction_tokens", "obfuscation"}
_WRITTEN = {"content", "text", "arguments", "reasoning_content", "reasoning", "delta", "partial_json", "thinking"}


def reduced(value: Any) -> Any:
    """A JSON value without names given by chance, times, and what says how much came from a cache or from drafts."""
    if isinstance(value, list):
        return [reduced(each) for each in value]
    if not isinstance(value, dict):
        return value
    # Token entries of llama.cpp's probabilities have a number called id.
    found = {
        key: reduced(each)
        for key, each in value.items()
        if (key not in _LEFT_OUT or (key == "id" and isinstance(each, int))) and not key.startswith("imp_spec_")
    }
    if "cache_read_input_tokens" in found:
        found["input_tokens"] += found.pop("cache_read_input_tokens") + found.pop("cache_creation_input_tokens")
    if "timings" in found:
        timings = found.pop("timings")
        found["timings"] = (timings["cache_n"] + timings["prompt_n"], timings["predicted_n"])
    return found


def folded(events: Iterable[Json]) -> Json:
    """A stream by the places of its values: pieces of text and lists are joined, of all else the last one counts."""
    texts: defaultdict[tuple[Any, ...], str] = defaultdict(str)
    lists: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
    last: dict[tuple[Any, ...], Any] = {}

    def walk(path: tuple[Any, ...], value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk((*path, key), each)
        elif isinstance(value, list) and all(isinstance(each, dict) and "index" in each for each in value):
            for each in value:
                walk((*path, each["index"]), each)
        elif isinstance(value, list):
            lists[path] += value
        elif isinstance(value, str) and path[-1] in _WRITTEN:
            texts[path] += value
        elif value is not None:
            last[path] = value

    for event in events:
        walk((), reduced(event))
    return {"texts": dict(texts), "lists": dict(lists), "last": last}


def parsed(lines: Iterable[str]) -> Iterable[Json]:
    """The events of a stream of server-sent events."""
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def check_begins(partial: Json, whole: Json) -> None:
    """What a client had read when it went away is the beginning of what it would have got."""
    for path, text in partial["texts"].items():
        assert whole["texts"][path].startswith(text), path


def _texts(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], str]:
    """The written texts of a reduced reply or of a folded stream."""
    if isinstance(value, dict) and "texts" in value:
        return dict(value["texts"])
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {}
    for key, each in items:
        if isinstance(each, str) and key in _WRITTEN:
            found[(*path, key)] = each
        found |= _texts(each, (*path, key))
    return found
