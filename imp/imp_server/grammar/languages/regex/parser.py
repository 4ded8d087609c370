r"""Reads a regex: ECMA-262 as JSON Schema uses it, plus spellings from PCRE and Python whose meaning is plain.

Kept out with an error that names the construct and its place: back-references, atomic and possessive forms, POSIX
classes, scripts in \p, escapes whose meaning differs between dialects.
"""

from __future__ import annotations

from imp_server.core import GrammarRefused
from imp_server.core.turns import spend
from imp_server.grammar.languages.regex.classes import WORD, property_class
from imp_server.grammar.languages.regex.dialect import ECMA, Dialect
from imp_server.grammar.languages.regex.tree import Alt, Begin, Cat, Chars, End, Look, Repeat, Tree
from imp_server.grammar.machines.codepoints import ANY, Ranges, negated, normal
from imp_server.grammar.machines.nodes import INFINITE

MAX_LENGTH = 32_768
MAX_DEPTH = 64
"""Groups inside groups. Later passes recurse along them."""

_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_LOOKS = {"(?=": (True, True), "(?!": (True, False), "(?<=": (False, True), "(?<!": (False, False)}


def parse(pattern: str, dialect: Dialect = ECMA, flags: str = "") -> Tree:
    """The tree of `pattern`; `flags`: those of i and s that hold from the start. Raises GrammarRefused."""
    if len(pattern) > MAX_LENGTH:
        raise GrammarRefused(f"the pattern has {len(pattern)} characters; at most {MAX_LENGTH} are supported")
    return _Parser(pattern, dialect, flags).whole()


class _Parser:
    def __init__(self, pattern: str, dialect: Dialect, flags: str) -> None:
        self.text = pattern
        self.dialect = dialect
        self.at = 0
        self.depth = 0
        self.ignore_case = "i" in flags
        self.dot_all = "s" in flags

    def refuse(self, what: str, at: int | None = None) -> GrammarRefused:
        place = self.at if at is None else at
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return GrammarRefused(f"pattern {shown!r}: {what} at character {place}", at=place)

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.at += len(text)
        return True

    def next(self, wanted: str) -> str:
        if self.at >= len(self.text):
            raise self.refuse(f"{wanted} missing")
        self.at += 1
        return self.text[self.at - 1]

    # --- structure --------------------------------------------------------------------------

    def whole(self) -> Tree:
        tree = self.alternatives()
        if self.at < len(self.text):
            raise self.refuse("unmatched )")
        return tree

    def alternatives(self) -> Tree:
        options = [self.row()]
        while self.take("|"):
            options.append(self.row())
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def row(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            spend()
            atom = self.atom()
            if atom is not None:
                parts.append(self.quantified(atom))
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    def atom(self) -> Tree | None:
        """One atom; None for a flag group, which matches nothing by itself."""
        char = self.text[self.at]
        if char == "(":
            return self.group()
        self.at += 1
        if char in "^$":
            return self.anchor(Begin() if char == "^" else End(), char)
        if char == ".":
            return Chars(ANY if self.dot_all else self.dialect.dot)
        if char == "[":
            return Chars(self.char_class())
        if char == "\\":
            return self.escape()
        if char in "*+?":
            raise self.refuse(f"nothing before {char} to repeat", self.at - 1)
        if char == "{" and self.bounds() is not None:
            raise self.refuse("nothing before { to repeat", self.at - 1)
        return self.char(ord(char))

    def anchor(self, anchor: Tree, spelled: str) -> Tree:
        if not self.dialect.whole:
            raise self.refuse(f"the anchor {spelled} (a terminal is matched as a whole)", self.at - len(spelled))
        return anchor

    def char(self, code: int) -> Chars:
        return Chars(self.cased(normal([(code, code)])))

    def cased(self, ranges: Ranges) -> Ranges:
        return self.dialect.any_case(ranges) if self.ignore_case else ranges

    def quantified(self, atom: Tree) -> Tree:
        at = self.at
        if self.take("*"):
            low, high = 0, INFINITE
        elif self.take("+"):
            low, high = 1, INFINITE
        elif self.take("?"):
            low, high = 0, 1
        elif self.take("{"):
            found = self.bounds()
            if found is None:
                self.at = at
                return atom
            low, high = found
        else:
            return atom
        if low > high:
            raise self.refuse("a repetition whose minimum exceeds its maximum", at)
        if self.take("+"):
            raise self.refuse("a possessive quantifier (it is not regular)")
        if self.take("?") and not self.dialect.whole:
            raise self.refuse("a lazy quantifier (say what can't stand inside instead)", self.at - 1)
        if self.at < len(self.text) and (self.text[self.at] in "*+?" or (self.peek("{") and self.is_bounds())):
            raise self.refuse("a quantifier after a quantifier")
        return Repeat(atom, low, high)

    def is_bounds(self) -> bool:
        at = self.at
        self.at += 1
        found = self.bounds() is not None
        self.at = at
        return found

    def bounds(self) -> tuple[int, int] | None:
        """What stands between { and }; None (and nothing consumed) if it is no repetition and { is literal."""
        end = self.text.find("}", self.at)
        inside = self.text[self.at : end] if end >= 0 else ""
        low, comma, high = inside.partition(",")
        digits = all(c in "0123456789" for c in low + high)
        if not digits or not (low or high) or len(inside) > 40:
            return None
        self.at = end + 1
        least = min(int(low or 0), INFINITE)
        return least, (least if not comma else min(int(high), INFINITE) if high else INFINITE)

    def group(self) -> Tree | None:
        start = self.at
        for opener, (ahead, wanted) in _LOOKS.items():
            if self.take(opener):
                return Look(self.inside(start), ahead, wanted, start)
        if self.take("(?:"):
            return self.inside(start)
        if self.take("(?P<") or self.take("(?<"):
            end = self.text.find(">", self.at)
            if end < 0 or not self.text[self.at : end].isidentifier():
                raise self.refuse("a group without a proper name", start)
            self.at = end + 1
            return self.inside(start)
        if self.peek("(?P="):
            raise self.refuse("a back-reference (it is not regular)", start)
        if self.take("(?"):
            return self.flags(start)
        if self.peek("(*"):
            raise self.refuse("a backtracking verb", start)
        self.at += 1
        return self.inside(start)

    def inside(self, start: int) -> Tree:
        """The rest of a group, its ) included. Flags set inside end with it."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.refuse(f"groups nested deeper than {MAX_DEPTH}", start)
        kept = self.ignore_case, self.dot_all
        tree = self.alternatives()
        if not self.take(")"):
            raise self.refuse("unclosed group", start)
        self.ignore_case, self.dot_all = kept
        self.depth -= 1
        return tree

    def flags(self, start: int) -> Tree | None:
        """`(?i)`, for the rest of the group around it, and `(?i:...)`; likewise s. After a minus: off."""
        on = True
        kept = self.ignore_case, self.dot_all
        while True:
            char = self.next("the end of a group")
            if char == "-" and on:
                on = False
            elif char == "i":
                self.ignore_case = on
            elif char == "s":
                self.dot_all = on
            elif char == "u" and on:
                continue
            elif char == ")":
                return None
            elif char == ":":
                tree = self.inside(start)
                self.ignore_case, self.dot_all = kept
                return tree
            else:
                raise self.refuse(f"the group (?{char}", start)

    # --- characters -------------------------------------------------------------------------

    def escape(self) -> Tree:
        """What follows a backslash outside a class."""
        start = self.at - 1
        char = self.next("the character after a backslash")
        if char in "bB":
            return self.word_edge(char == "b", start)
        if char in "123456789k":
            raise self.refuse(f"the back-reference \\{char} (it is not regular)", start)
        if char in "AzZ":
            return self.anchor(Begin() if char == "A" else End(), f"\\{char}")
        self.at -= 1
        return Chars(self.cased(self.class_escape(start)))

    def word_edge(self, wanted: bool, start: int) -> Tree:
        r"""`\b` (`wanted`) or `\B`: whether exactly one of the characters beside the place belongs to a word."""
        if not self.dialect.whole:
            raise self.refuse("a word boundary", start)
        word = Chars(WORD)
        sides = [(behind, behind != wanted) for behind in (True, False)]
        return Alt(tuple(Cat((Look(word, False, a, start), Look(word, True, b, start))) for a, b in sides))

    def class_escape(self, start: int) -> Ranges:
        """The escape whose backslash stands at `start`; self.at is behind the backslash."""
        char = self.next("the character after a backslash")
        if char in "dDwWsS":
            return self.dialect.shorthands()[char]
        if char in "pP":
            return self.property(char == "P", start)
        code = self.code_point(char, start)
        return normal([(code, code)])

    def code_point(self, char: str, start: int) -> int:
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "0":
            if self.at < len(self.text) and self.text[self.at].isdigit():
                raise self.refuse("an octal escape", start)
            return 0
        if char == "c":
            letter = self.next("the letter of \\c")
            if not ("a" <= letter.lower() <= "z"):
                raise self.refuse("\\c without a letter", start)
            return ord(letter) & 31
        if char == "x":
            return self.hexadecimal(2, start)
        if char == "u":
            return self.unicode_escape(start)
        if char.isascii() and char.isalnum():
            raise self.refuse(f"the escape \\{char}, whose meaning differs between dialects,", start)
        return ord(char)

    def unicode_escape(self, start: int) -> int:
        if self.take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : end] if end >= 0 else ""
            self.at = end + 1
            code = _hex(digits)
            if code is None or code > 0x10FFFF:
                raise self.refuse("a malformed \\u{...}", start)
        else:
            code = self.hexadecimal(4, start)
            if 0xD800 <= code < 0xDC00 and self.take("\\u"):
                low = self.hexadecimal(4, start)
                if not 0xDC00 <= low < 0xE000:
                    raise self.refuse("half of a surrogate pair", start)
                return 0x10000 + ((code & 0x3FF) << 10) + (low & 0x3FF)
        return code

    def hexadecimal(self, n_digits: int, start: int) -> int:
        code = _hex(self.text[self.at : self.at + n_digits]) if self.at + n_digits <= len(self.text) else None
        if code is None:
            raise self.refuse(f"an escape without its {n_digits} hexadecimal digits", start)
        self.at += n_digits
        return code

    def property(self, negate: bool, start: int) -> Ranges:
        end = self.text.find("}", self.at)
        if self.take("{") and end >= 0:
            name, self.at = self.text[self.at : end], end + 1
        else:
            name = self.next("the name of a property")
        if name.startswith("^"):
            negate, name = not negate, name[1:]
        ranges = property_class(name)
        if ranges is None:
            raise self.refuse(f"the unsupported property \\p{{{name}}} (general categories are supported)", start)
        spend(1 + len(ranges) // 4)
        return negated(ranges) if negate else ranges

    def char_class(self) -> Ranges:
        """The rest of a class, its ] included. ECMA-262: `[]` matches nothing, `[^]` everything."""
        start = self.at - 1
        negate = self.take("^")
        found: list[tuple[int, int]] = []
        while (not found and not self.dialect.empty_class) or not self.take("]"):
            spend()
            if self.text.startswith(("[:", "[=", "[."), self.at):
                raise self.refuse("a POSIX class")
            low = self.class_atom(start)
            if self.peek("-") and not self.peek("-]"):
                at = self.at
                self.at += 1
                high = self.class_atom(start)
                if _single(low) and _single(high):
                    if low[0][0] > high[0][0]:
                        raise self.refuse("a range out of order", at)
                    found.append((low[0][0], high[0][0]))
                else:
                    found += [*low, (0x2D, 0x2D), *high]
            else:
                found += low
        ranges = self.cased(normal(found))
        return negated(ranges) if negate else ranges

    def class_atom(self, start: int) -> tuple[tuple[int, int], ...]:
        if self.at >= len(self.text):
            raise self.refuse("unclosed class", start)
        at = self.at
        char = self.next("]")
        if char != "\\":
            return ((ord(char), ord(char)),)
        if self.take("b"):
            return ((8, 8),)
        if self.take("u"):
            code = self.unicode_escape(at)
            return ((code, code),)
        if self.at < len(self.text) and self.text[self.at] in "123456789Bk":
            raise self.refuse(f"the escape \\{self.text[self.at]} in a class", at)
        return self.class_escape(at)


def _single(ranges: tuple[tuple[int, int], ...]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _hex(digits: str) -> int | None:
    if not digits or any(c not in "0123456789abcdefABCDEF" for c in digits) or len(digits) > 8:
        return None
    return int(digits, 16)
