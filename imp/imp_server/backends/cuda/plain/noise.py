"""Philox4x32-10 and Gumbel noise on tensors; decode/philox.py is the law."""

from __future__ import annotations

import torch

Tensor = torch.Tensor

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF


def gumbel(seed_low: Tensor, seed_high: Tensor, choice: Tensor, position: Tensor, ids: Tensor) -> Tensor:
    """float64 noise for each id; all arguments int64 with values of 32 bits, of shapes that broadcast."""
    word = _first_word(seed_low, seed_high, (position, torch.zeros_like(position), ids, choice))
    uniform = (word.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))


def _first_word(k0: Tensor, k1: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Ten rounds. Products wrap at 64 bits, which leaves both halves as they should be."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> 32 & _LOW) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32 & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0
