"""Other libraries of constrained decoding, behind what grammar_bench.py asks of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

from imp_server.vocab.table import Vocabulary

Tokenize = Callable[[str], list[int]]


class Peer(Protocol):
    """Made with a vocabulary and a tokenisation. Raises ImportError where its library isn't installed."""

    name: str

    def compile(self, schema: Any) -> Any:
        """A grammar. Raises ValueError for a schema that the library refuses."""
        ...

    def matcher(self, grammar: Any) -> Any:
        """At the beginning of a text."""
        ...

    def fill_mask(self, matcher: Any) -> None: ...

    def accept(self, matcher: Any, token: int) -> bool:
        """False: the token isn't allowed."""
        ...


class LlGuidance:
    def __init__(self, vocabulary: Vocabulary, tokenize: Tokenize) -> None:
        import llguidance
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        class Wrapper:
            eos_token_id = vocabulary.end_ids[0]
            bos_token_id = None
            tokens = vocabulary.token_bytes
            special_token_ids = list(vocabulary.special_texts)

            def __call__(self, text: str | bytes) -> list[int]:
                return tokenize(text if isinstance(text, str) else text.decode("utf-8", "replace"))

        self.name = f"llguidance {llguidance.__version__}"
        self._library, self._fill = llguidance, fill_next_token_bitmask
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Wrapper()), n_vocab=vocabulary.size)
        self._mask = allocate_token_bitmask(1, vocabulary.size)

    def compile(self, schema: Any) -> Any:
        """The matcher: grammars are compiled when one is made."""
        matcher = self._library.LLMatcher(self._tokenizer, self._library.LLMatcher.grammar_from_json_schema(schema))
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def matcher(self, grammar: Any) -> Any:
        grammar.reset()
        return grammar

    def fill_mask(self, matcher: Any) -> None:
        self._fill(matcher, self._mask)

    def accept(self, matcher: Any, token: int) -> bool:
        return bool(matcher.consume_token(token))


class XGrammar:
    def __init__(self, vocabulary: Vocabulary, _: Tokenize) -> None:
        import xgrammar

        raw = [
            b if not vocabulary.is_special(i) else vocabulary.special_texts[i].encode()
            for i, b in enumerate(vocabulary.token_bytes)
        ]
        info = xgrammar.TokenizerInfo(raw, stop_token_ids=list(vocabulary.end_ids))
        self.name = f"xgrammar {version('xgrammar')}"
        self._library = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._mask = xgrammar.allocate_token_bitmask(1, vocabulary.size)

    def compile(self, schema: Any) -> Any:
        try:
            return self._compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except Exception as error:  # its own errors have no base of theirs
            raise ValueError(str(error)) from None

    def matcher(self, grammar: Any) -> Any:
        return self._library.GrammarMatcher(grammar)

    def fill_mask(self, matcher: Any) -> None:
        matcher.fill_next_token_bitmask(self._mask)

    def accept(self, matcher: Any, token: int) -> bool:
        return bool(matcher.accept_token(token))


PEERS: tuple[Callable[[Vocabulary, Tokenize], Peer], ...] = (LlGuidance, XGrammar)
