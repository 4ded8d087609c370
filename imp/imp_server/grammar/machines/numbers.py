"""Decimal numbers between bounds and on a grid, as machines over JSON's spelling without an exponent.

Nothing is searched: whether a prefix can still become an allowed number is arithmetic on intervals of integers,
so bounds of 300 digits and steps of any size cost the same. All values are kept as integers in units of 10^-scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

from imp_server.core.turns import spend
from imp_server.grammar.machines.machine import DEAD, GROWING

POINT, MINUS, ZERO = 0x2E, 0x2D, 0x30
LESS, SAME, MORE = -1, 0, 1
DIGITS = 100
"""Of a number that are calculated with for a unit."""
BITS = 200
"""Of the step, for which one more is paid."""

_CLASSES = bytearray(256)
for _at, _byte in enumerate(b"0123456789.-", start=1):
    _CLASSES[_byte] = _at
CLASSES = bytes(_CLASSES)


class Bound(NamedTuple):
    value: Decimal
    strict: bool = False
    """The value itself is excluded."""


def joint(
    ranges: Sequence[tuple[Bound | None, Bound | None]], steps: Sequence[Decimal], *, point: bool = True
) -> Decimals:
    """The numbers within all ranges that are multiples of all steps."""
    lows = [low for low, _ in ranges if low is not None]
    highs = [high for _, high in ranges if high is not None]
    low = max(lows, key=lambda b: (b.value, b.strict), default=None)
    high = min(highs, key=lambda b: (b.value, not b.strict), default=None)
    if not steps:
        return Decimals(low, high, None, point=point)
    scale = max(_n_decimals(step) for step in steps)
    together = lcm(*(int(Fraction(step) * _power(scale)) for step in steps))
    return Decimals(low, high, Decimal(f"{together}e-{scale}"), point=point)


class _Edge(NamedTuple):
    """A bound on a magnitude: its digits (whole part, then `scale` decimals), and their number before the point."""

    units: int
    n_whole: int
    strict: bool


class _Range(NamedTuple):
    """Magnitudes from `low` to `high` (None: unbounded); `empty` where there are none."""

    low: _Edge
    high: _Edge | None
    empty: bool


class _State(NamedTuple):
    """What was read. Comparisons are with the digits of the bound that stand at the same places."""

    phase: str
    """start | minus | zero | whole | point (digits after it, too)"""
    negative: bool = False
    n_digits: int = 0
    """Of the whole part, or behind the point; saturated where more of them make no difference."""
    low: int = SAME
    high: int = SAME
    remainder: int = 0


class Decimals:
    """Numbers from `low` to `high` that are multiples of `step`."""

    def __init__(self, low: Bound | None, high: Bound | None, step: Decimal | None, *, point: bool = True) -> None:
        """`point`: a fraction may be written; without it `step` must be whole."""
        self.classes = CLASSES
        self._point = point
        n_decimals = [_n_decimals(v) for v in (low and low.value, high and high.value, step) if v is not None]
        # without a step one more decimal than the bounds have: two different bounds then have a unit between them
        self._scale = max([1, *n_decimals]) + (step is None)
        self._unit = _power(self._scale)
        self._step = 1 if step is None else int(Fraction(step) * self._unit)
        self._dense = step is None
        self._ranges = (self._magnitudes(low, high, False), self._magnitudes(low, high, True))
        n_step = len(str(self._step))
        self._enough = 1 + n_step + max((r.low.n_whole for r in self._ranges), default=0)
        self._numbers: dict[_State, int] = {}
        self._states: list[_State] = []
        self._rests: list[bytes] = []
        self._rows: list[dict[int, int]] = []
        self.start = self._intern(_State("start"))

    def _magnitudes(self, low: Bound | None, high: Bound | None, negative: bool) -> _Range:
        if negative:
            low, high = _flipped(high), _flipped(low)
        nothing = high is not None and (high.value < 0 or (high.value == 0 and high.strict))
        if low is None or low.value < 0:
            low = Bound(Decimal(0))
        return _Range(self._edge(low), None if high is None or nothing else self._edge(high), nothing)

    def _edge(self, bound: Bound) -> _Edge:
        units = int(Fraction(bound.value) * self._unit)
        return _Edge(units, len(str(units // self._unit)), bound.strict)

    # --- the Machine protocol ---------------------------------------------------------------

    def _intern(self, state: _State) -> int:
        known = self._numbers.get(state)
        if known is None:
            rest = self._completion(state)
            known = self._numbers[state] = DEAD if rest is None else len(self._states)
            if rest is not None:
                self._states.append(state)
                self._rests.append(rest.encode())
                self._rows.append({})
        return known

    def step(self, state: int, byte: int) -> int:
        row = self._rows[state]
        target = row.get(byte)
        if target is None:
            after = self._after(self._states[state], byte)
            with GROWING:
                target = row[byte] = DEAD if after is None else self._intern(after)
        return target

    def accepts(self, state: int) -> bool:
        return not self._rests[state]

    def live(self, state: int) -> bool:
        return state != DEAD

    def room(self, state: int) -> int:
        return 0

    def shortest(self, state: int) -> bytes | None:
        return None if state == DEAD else self._rests[state]

    # --- reading ----------------------------------------------------------------------------

    def _after(self, state: _State, byte: int) -> _State | None:
        if byte == MINUS:
            return _State("minus", True) if state.phase == "start" else None
        if byte == POINT:
            return self._to_point(state) if state.phase in ("zero", "whole") and self._point else None
        digit = byte - ZERO
        if not 0 <= digit <= 9 or state.phase == "zero" or self._ranges[state.negative].empty:
            return None
        if state.phase == "point":
            return self._decimal(state, digit)
        return self._whole(state, digit)

    def _whole(self, state: _State, digit: int) -> _State | None:
        span = self._ranges[state.negative]
        n = state.n_digits + 1
        low = _compared(state.low, digit, self._whole_digit(span.low, n), n <= span.low.n_whole)
        high = LESS
        if span.high is not None:
            if n > span.high.n_whole:
                return None
            high = _compared(state.high, digit, self._whole_digit(span.high, n), True)
        first = state.phase in ("start", "minus")
        remainder = (state.remainder * 10 + digit) % self._modulus(self._scale)
        most = span.low.n_whole + 1 if span.high is None else n
        return _State("zero" if first and digit == 0 else "whole", state.negative, min(n, most), low, high, remainder)

    def _to_point(self, state: _State) -> _State | None:
        span = self._ranges[state.negative]
        low, high = self._settled(state, span)
        if low == LESS or high == MORE:
            return None
        # from here on the remainder is that of all digits: the whole part's was taken modulo a divisor of the step
        return _State("point", state.negative, 0, low, high, state.remainder)

    def _decimal(self, state: _State, digit: int) -> _State | None:
        span = self._ranges[state.negative]
        k = state.n_digits + 1
        low, high = state.low, state.high
        if k > self._scale:
            if digit:
                if not self._dense or high == SAME:
                    return None
                low = MORE
            return state._replace(low=low)
        at = 10 ** (self._scale - k)
        if low == SAME:
            low = _sign(digit - span.low.units // at % 10)
        if high == SAME and span.high is not None:
            high = _sign(digit - span.high.units // at % 10)
        if low == LESS or high == MORE:
            return None
        remainder = (state.remainder * 10 + digit) % self._modulus(self._scale - k)
        return _State("point", state.negative, k, low, high, remainder)

    def _modulus(self, n_after: int) -> int:
        """What the digits read so far have to be known modulo, with `n_after` decimals still to come.

        Only their product with 10^n_after matters. A remainder modulo this one times 10 is one modulo the next.
        """
        return self._step // gcd(self._step, _power(n_after))

    def _whole_digit(self, edge: _Edge, n: int) -> int:
        """Digit number n (from 1) of the bound's whole part."""
        return edge.units // self._unit // _power(max(edge.n_whole - n, 0)) % 10

    def _settled(self, state: _State, span: _Range) -> tuple[int, int]:
        """Comparisons of the whole part, now that its length is known."""
        low = state.low if state.n_digits == span.low.n_whole else _sign(state.n_digits - span.low.n_whole)
        if span.high is None:
            return low, LESS
        return low, state.high if state.n_digits == span.high.n_whole else LESS

    # --- completions ------------------------------------------------------------------------

    def _completion(self, state: _State) -> str | None:
        """The shortest text that makes an allowed number of what was read."""
        if state.phase == "start":
            options = [self._of_sign(False, ""), self._of_sign(True, "-")]
        elif state.phase == "minus":
            options = [self._of_sign(True, "")]
        elif state.phase == "point":
            options = [self._decimals(state)]
        else:
            options = [self._more(state)]
        return min((o for o in options if o is not None), key=len, default=None)

    def _of_sign(self, negative: bool, sign: str) -> str | None:
        best: str | None = None
        for digit in range(10):
            after = self._whole(_State("start", negative), digit) if not self._ranges[negative].empty else None
            rest = None if after is None else self._more(after)
            if rest is not None and (best is None or len(rest) + 1 < len(best)):
                best = f"{digit}{rest}"
        return None if best is None else sign + best

    def _more(self, state: _State) -> str | None:
        """Completion of a whole part: some more digits, then perhaps a fraction."""
        span = self._ranges[state.negative]
        best: str | None = None
        most = 0 if state.phase == "zero" else (span.high.n_whole if span.high else self._enough) - state.n_digits
        for n_more in range(max(0, span.low.n_whole - state.n_digits), most + 1):
            if best is not None and len(best) <= n_more:
                break
            spend(1 + (n_more + self._scale) // DIGITS + self._step.bit_length() // BITS)
            settled = self._limits(state, span, n_more)
            found = None if settled is None else self._fitting(state, n_more, *settled)
            if found is not None and (best is None or len(found) < len(best)):
                best = found
        return best

    def _limits(self, state: _State, span: _Range, n_more: int) -> tuple[int, int] | None:
        """Least and greatest number of units that may be added after `n_more` further digits of the whole part."""
        total = state.n_digits + n_more
        if total < span.low.n_whole or (total == span.low.n_whole and state.low == LESS):
            return None
        width = 10 ** (n_more + self._scale)
        least, most = 0, width - 1
        if total == span.low.n_whole and state.low == SAME:
            least = span.low.units % width + span.low.strict
        if span.high is not None and total == span.high.n_whole:
            if state.high == MORE:
                return None
            if state.high == SAME:
                most = span.high.units % width - span.high.strict
        return least, most

    def _fitting(self, state: _State, n_more: int, least: int, most: int) -> str | None:
        """The shortest digits (and decimals) for the added units; fewest decimals first."""
        for n_decimals in range(self._scale + 1 if self._point else 1):
            base = state.remainder * 10 ** (n_more + self._scale)
            added = self._on_grid(base, least, most, self._scale - n_decimals)
            if added is not None:
                whole, part = divmod(added, self._unit)
                text = f"{whole:0{n_more}d}" if n_more else ""
                return text + ("." + f"{part:0{self._scale}d}"[:n_decimals] if n_decimals else "")
        return None

    def _decimals(self, state: _State) -> str | None:
        span = self._ranges[state.negative]
        width = 10 ** (self._scale - state.n_digits)
        least = span.low.units % width + span.low.strict if state.low == SAME else 0
        most = width - 1
        if self._dense and state.n_digits == self._scale and state.low == SAME and span.low.strict:
            return None if state.high == SAME else "1"
        if state.high == SAME and span.high is not None:
            most = span.high.units % width - span.high.strict
        for n_decimals in range(max(state.n_digits, 1), self._scale + 1):
            added = self._on_grid(state.remainder * width, least, most, self._scale - n_decimals)
            if added is not None:
                n_new = n_decimals - state.n_digits
                return f"{added // 10 ** (self._scale - n_decimals):0{n_new}d}" if n_new else ""
        return None

    def _on_grid(self, base: int, least: int, most: int, n_zeros: int) -> int | None:
        """The least number of units in [least, most] that ends in `n_zeros` zeros and completes `base` to a multiple.

        `base` is known modulo the step and ends in as many zeros itself.
        """
        tens = 10**n_zeros
        common = gcd(self._step, tens)
        if base % common:
            return None
        modulus = self._step // common
        first = tens * (-(base // common) * pow(tens // common, -1, modulus) % modulus)
        period = tens * modulus
        added = first + -((first - least) // period) * period if first < least else first
        return added if added <= most else None


def _compared(known: int, digit: int, expected: int, inside: bool) -> int:
    if not inside:
        return MORE
    return known if known != SAME else _sign(digit - expected)


def _power(exponent: int) -> int:
    return int(10**exponent)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _flipped(bound: Bound | None) -> Bound | None:
    # a unary minus would round to the precision of the decimal context
    return None if bound is None else Bound(bound.value.copy_negate(), bound.strict)


def _n_decimals(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)
