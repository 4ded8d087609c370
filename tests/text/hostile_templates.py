"""Chat templates and tokenizer files that nobody wrote in good faith: examples of each kind, and strategies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

BIG = 10**9

DOUBLING = [
    "{% macro f(n) %}{% if n>0 %}{{f(n-1)}}{{f(n-1)}}{% endif %}{% endmacro %}{{f(40)}}",
    "{% macro f(n) %}{% if n>0 %}{{f(n-1)}}{{f(n-1)}}{% else %}{{ 'x'*1000 }}{% endif %}{% endmacro %}{{f(40)}}",
    "{% macro f(n) %}{% set a %}{{ caller() }}{{ caller() }}{% endset %}{{ a }}{% endmacro %}"
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s %}{% call f(1) %}{{ ns.s }}{% endcall %}"
    "{% endset %}{% endfor %}{{ ns.s }}",
    "{% for x in [1,2] recursive %}{{ loop([1,2]) }}{% endfor %}",
    "{% set l = [0] * 99999 %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
]
GROWERS = [
    "ns.s ~ ns.s",
    "ns.s + ns.s",
    "ns.s * 2",
    "[ns.s, ns.s] | join",
    "[ns.s, ns.s] | join(',')",
    "'x'.join([ns.s, ns.s])",
    "ns.s.replace('x', 'xx')",
    "ns.s | replace('x', 'xx')",
    "ns.s | replace('', ns.s)",
    "'%s%s' % (ns.s, ns.s)",
    "'%(a)s%(a)s' % {'a': ns.s}",
    "'%s%s' | format(ns.s, ns.s)",
    "'{0}{0}'.format(ns.s)",
    "'{a}{a}'.format(a=ns.s)",
    "'{a}{a}'.format_map({'a': ns.s})",
    "[ns.s, ns.s] | string",
    "[ns.s, ns.s] | tojson",
    "{'a': ns.s, 'b': ns.s} | tojson",
    "{'a': ns.s, 'b': ns.s} | string",
    "ns.s | indent(width=ns.s|length)",
    "(ns.s ~ '\\n') | indent(ns.s, first=true)",
    "ns.s | center((ns.s|length) * 2)",
    "ns.s.ljust((ns.s|length) * 2)",
    "ns.s.expandtabs(99) ~ '\\t\\t'",
    "(ns.s, ns.s)|sum(start='') if false else ns.s ~ ns.s",
    "ns.s[:] ~ ns.s[:]",
    "ns.s | escape ~ ns.s | urlencode",
    "[ns.s] * 2",
    "(ns.s | list) + (ns.s | list)",
    "[ns.s, ns.s] | map('string') | join",
    "(ns.s | batch(3, ns.s) | list) | string",
    "ns.s | wordwrap(1, true, ns.s)",
    "ns.s.split('x') | join(ns.s)",
]
"""Make of the text ns.s one that is longer; round after round there is no end to it."""
SINGLE = [
    f"{{{{ 'x' | center({BIG}) }}}}",
    f"{{{{ 'x'.center({BIG}) }}}}",
    f"{{{{ 'x'.ljust({BIG}) }}}}",
    f"{{{{ 'x'.rjust({BIG}) }}}}",
    f"{{{{ '1'.zfill({BIG}) }}}}",
    f"{{{{ '\\t'.expandtabs({BIG}) }}}}",
    f"{{{{ 'x\\ny' | indent({BIG}) }}}}",
    f"{{{{ [[1]] | tojson(indent={BIG}) }}}}",
    f"{{{{ '%{BIG}d' % 1 }}}}",
    f"{{{{ '%*d' % ({BIG}, 1) }}}}",
    f"{{{{ '%.{BIG}f' % 1.0 }}}}",
    f"{{{{ '%{BIG}s' | format('x') }}}}",
    f"{{{{ '{{:>{BIG}}}'.format(1) }}}}",
    f"{{{{ '{{:>{{}}}}'.format(1, {BIG}) }}}}",
    "{{ ('x'*99999).replace('x', 'y'*99999) }}",
    f"{{{{ range(99999) | batch({BIG}, 'x') | list }}}}",
    f"{{{{ 'x' | slice({BIG}) | list }}}}",
    f"{{{{ 1 | round({BIG}, 'ceil') }}}}",
    f"{{{{ (1).to_bytes({BIG}, 'big') }}}}",
    f"{{{{ 'x'.encode().ljust({BIG}) }}}}",
    f"{{{{ 10 ** {BIG} }}}}",
    "{{ (10**4000) ** (10**4000) }}",
    "{{ ('f'*9999999) | int(base=16) // 3 }}",
    f"{{{{ lipsum({BIG}) }}}}",
    f"{{{{ lipsum(n={BIG}) }}}}",
    f"{{{{ 'x' * {BIG} }}}}",
    f"{{{{ {BIG} * 'x' }}}}",
    f"{{{{ [0] * {BIG} }}}}",
    "{{ ([['x'*9999]*9999]*99999) }}",
    "{{ ([['x'*9999]*9999]*99999) | string }}",
    "{{ ([['x'*9999]*9999]*99999) ~ '' }}",
    "{{ ([['x'*9999]*9999]*99999) | join }}",
    "{{ ([['x'*9999]*999]*999) | tojson }}",
    "{{ ([[0]*3000]*3000) | sum(start=[]) }}",
    "{{ ('x'*99999) | wordwrap(1, true, 'y'*99999) }}",
    "{{ ('x'*9999999).translate({120: 'y'*9999}) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999) | sort | first }}{% endfor %}",
    "{% for i in range(99999) %}{% if range(99999) | map('string') | select('equalto', 'x') | list %}{% endif %}"
    "{% endfor %}",
    "{{ cycler(*range(99999)).next() * 999999 * 'x' }}",
    "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
    "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
]


def grown(grower: str, rounds: int = 64) -> str:
    return f"{{% set ns = namespace(s='x') %}}{{% for i in range({rounds}) %}}{{% set ns.s = {grower} %}}{{% endfor %}}"


NUMBERS = "{% set n = 3**20000 %}{% for i in range(99999) %}{% set k = n * n %}{% endfor %}"
TEXTS = "{% set a, b = 'x' * 9999999, 'x' * 9999999 %}{% for i in range(99999) %}{% set k = a == b %}{% endfor %}"
SHARED = [
    "{{ ns.a == ns.b }}", "{{ {ns.t: 1} | length }}", "{% for i in [ns.a, ns.b] %}{{ loop.changed(i) }}{% endfor %}",
    "{{ [ns.a] | reject('in', [ns.b]) | list | length }}", "{{ {'a': ns.a}.items() == {'a': ns.b}.items() }}",
    "{{ [1].index(ns.b) }}", "{{ raise_exception(ns.a) }}", "{{ ns.a < ns.b < ns.a }}", "{{ ns.a not in [ns.b] }}",
    "{{ ns.a is eq(ns.b) }}", "{{ {1: 1}[ns.t] is defined }}", "{{ {1: 1}.get(ns.t) }}", "{{ ns.a is lower }}",
    "{{ [ns.a, ns.b] | sort | length }}", "{{ [ns.t, ns.u] | unique | list | length }}",
    "{{ [ns.a, ns.b] | max | length }}", "{{ dict([[ns.t, 1]]) | length }}",
    "{{ [{'a': ns.t}, {'a': ns.u}] | groupby('a') | length }}",
    "{{ ns.a in {'a': ns.b}.values() }}", "{{ {'a': 1} | attr(ns.t) }}", "{{ [1] | map(attribute=ns.t) | list }}",
    "{{ ns.a | capitalize }}", "{{ ns.a | wordcount }}", "{{ 'x' | replace(ns.a, ns.b) }}",
    "{{ {ns.t: 1}.items() - {ns.u: 1}.items() }}",
]  # fmt: skip
"""What is done with values that hold themselves twice, 40 levels deep."""


def shared(use: str) -> str:
    """Two of each, alike."""
    first = "{% set ns = namespace(a=[1], b=[1], t=(1,), u=(1,)) %}"
    doubled = "".join(f"{{% set ns.{n} = [ns.{n}, ns.{n}] %}}" for n in "ab")
    doubled += "".join(f"{{% set ns.{n} = (ns.{n}, ns.{n}) %}}" for n in "tu")
    return f"{first}{{% for i in range(40) %}}{doubled}{{% endfor %}}{use}"


ALL = [*DOUBLING, *map(grown, GROWERS), *SINGLE, NUMBERS, TEXTS, *map(shared, SHARED[:5])]

_TEXTS = st.sampled_from(["'x'", "'xy\\n'", "ns.s", "message.content", "'%s'", "messages|string", "'\\t'"])
_NUMBERS = st.sampled_from(["1", "2", "64", "9999", "999999", str(BIG), "10**6", "ns.s|length", "(ns.s|length)*2"])


def _expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def of(form: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.tuples(*parts).map(lambda found: form.format(*found))

    numeric = ["({0}).ljust({1})", "({0}) | center({1})", "({0}) | indent({1}, true)", "({0}) * ({1})", "({0})[:{1}]"]
    double = ["({0}) ~ ({1})", "({0}) + ({1})", "({0}).replace('x', {1})", "({0}) | replace('x', {1})"]
    double += [
        "[{0}, {1}] | join({0})",
        "'{{0}}{{1}}{{0}}'.format({0}, {1})",
        "'%s%s' % ({0}, {1})",
        "({0}).join([{1}]*9)",
    ]
    single = ["[{0}] | tojson(indent=9)", "({0}) | upper | title", "[[{0}]*9]*9 | string", "({0}) | list | string"]
    single += ["({0}) | urlencode", "f({0})", "({0}).split('x') | join('yy')", "({0}) | batch(3, 'z') | list | string"]
    return st.one_of(
        *(of(form, inner, _NUMBERS) for form in numeric),
        *(of(form, inner, inner) for form in double),
        *(of(form, inner) for form in single),
    )


def hostile_templates() -> st.SearchStrategy[str]:
    """Sources in which texts grow in loops, macros and filters of any combination."""
    expressions = st.recursive(_TEXTS, _expressions, max_leaves=6)

    def source(parts: tuple[str, str, int, int]) -> str:
        body, inside, rounds, depth = parts
        return (
            f"{{% macro f(s, n={depth}) %}}{{% if n > 0 %}}{{{{ f(s, n-1) }}}}{{{{ f(s, n-1) }}}}{{% else %}}"
            f"{{{{ s }}}}{{% endif %}}{{% endmacro %}}{{% set ns = namespace(s='x') %}}"
            f"{{% for message in messages * {rounds} %}}"
            f"{{% set ns.s = {body} %}}{{{{ {inside} }}}}{{% endfor %}}{{{{ ns.s }}}}"
        )

    return st.tuples(expressions, expressions, st.sampled_from([1, 30, 99999]), st.sampled_from([0, 2, 40])).map(source)


# --- tokenizers ---------------------------------------------------------------------------------

CATASTROPHIC = [r"(x+x+)+y", r"(?:x|xx)+y", r"(?=(x+x+)+y)x", r"(x+)+[yq]", r"(?:x|xx)*[^xz]", r"(?:xx?)+(?:y|q)"]
_VOCAB = {chr(33 + i): i for i in range(94)}


def tokenizer_file(
    *, normalizer: Any = None, pre_tokenizer: Any = None, model: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A tokenizer.json of single characters."""
    bpe: dict[str, Any] = {"type": "BPE", "vocab": dict(_VOCAB), "merges": [], "unk_token": None}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": model or bpe,
    }


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replacing(old: dict[str, str], new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": old, "content": new}


def sequence(kind: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", kind: steps}


WORD_PIECE = {"type": "WordPiece", "vocab": {"[UNK]": 0, "x": 1, "##x": 2}, "unk_token": "[UNK]"}
TOKENIZERS: list[dict[str, Any]] = [
    *(tokenizer_file(pre_tokenizer=split(pattern)) for pattern in CATASTROPHIC),
    tokenizer_file(normalizer=replacing({"Regex": CATASTROPHIC[0]}, "z")),
    tokenizer_file(normalizer=sequence("normalizers", [replacing({"String": "x"}, "xx")] * 60)),
    tokenizer_file(normalizer=replacing({"String": "x"}, "x" * 100_000)),
    tokenizer_file(normalizer={"type": "Prepend", "prepend": "x" * 10_000_000}),
    tokenizer_file(
        model={**WORD_PIECE, "continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9},
        pre_tokenizer=None,
    ),
]
"""Each endless, or without bound in memory, on a text of many x."""


def hostile_tokenizers() -> st.SearchStrategy[dict[str, Any]]:
    """tokenizer.json files whose steps are endless, or grow what they are given."""
    patterns = st.sampled_from(CATASTROPHIC) | st.text("x()*+?{}|y9,", max_size=12)
    replaced = st.one_of(
        st.builds(lambda p, n: replacing({"Regex": p}, "x" * n), patterns, st.integers(0, 1000)),
        st.builds(lambda n: replacing({"String": "x"}, "x" * n), st.integers(0, 1000)),
    )
    normalizers = st.lists(replaced, max_size=20).map(lambda steps: sequence("normalizers", steps))
    pre = st.lists(patterns.map(split), max_size=4).map(lambda steps: sequence("pretokenizers", steps))
    return st.builds(lambda n, p: tokenizer_file(normalizer=n, pre_tokenizer=p), normalizers, pre)
