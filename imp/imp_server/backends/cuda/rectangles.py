"""A ragged step cut into rectangles: rows of like width side by side, long chunks piece after piece."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from imp_server.backends.base import BLOCK_TOKENS, Int32s, Step
from imp_server.backends.cuda.buffers import power_of_two
from imp_server.backends.cuda.mixers import DECODE_WIDTH

MAX_WIDTH = 512
"""Ids of a row in one rectangle."""
MAX_TOKENS = 2048
"""Of a rectangle, padding included."""


class RowPiece(NamedTuple):
    """Ids [begin, end) of the step, all of one row."""

    row: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Pieces padded to a bucket of (rows, width, columns)."""

    pieces: tuple[RowPiece, ...]
    n_rows: int
    width: int
    columns: int

    def tokens(self, step: Step) -> Int32s:
        """[ids of the step]: where each is here, -1 if it is in another rectangle."""
        out = np.full(len(step.ids), -1, dtype=np.int32)
        for r, piece in enumerate(self.pieces):
            out[piece.begin : piece.end] = np.arange(piece.end - piece.begin, dtype=np.int32) + r * self.width
        return out

    def ids(self, step: Step) -> Int32s:
        """[rows * width]; 0 for padding."""
        return self._spread(step.ids)

    def starts(self, step: Step) -> Int32s:
        out = np.zeros(self.n_rows, dtype=np.int32)
        for r, piece in enumerate(self.pieces):
            out[r] = step.positions[piece.begin]
        return out

    def counts(self) -> Int32s:
        out = np.zeros(self.n_rows, dtype=np.int32)
        out[: len(self.pieces)] = [piece.end - piece.begin for piece in self.pieces]
        return out

    def slots(self, step: Step, scratch: int) -> Int32s:
        out = np.full(self.n_rows, scratch, dtype=np.int32)
        out[: len(self.pieces)] = [step.rows[piece.row].slot for piece in self.pieces]
        return out

    def _spread(self, values: Int32s) -> Int32s:
        out = np.zeros((self.n_rows, self.width), dtype=np.int32)
        for r, piece in enumerate(self.pieces):
            out[r, : piece.end - piece.begin] = values[piece.begin : piece.end]
        return out.reshape(-1)


def cut(step: Step) -> list[Rectangle]:
    """Rectangles that cover the step, a row's pieces in order."""
    waves: list[dict[int, list[RowPiece]]] = []
    for row, (begin, end) in enumerate(pairwise(step.row_starts.tolist())):
        for number, at in enumerate(range(begin, end, MAX_WIDTH)):
            piece = RowPiece(row, at, min(at + MAX_WIDTH, end))
            if len(waves) <= number:
                waves.append({})
            waves[number].setdefault(power_of_two(piece.end - piece.begin), []).append(piece)
    return [
        _rectangle(step, width, pieces[at : at + MAX_TOKENS // width])
        for wave in waves
        for width, pieces in wave.items()
        for at in range(0, len(pieces), MAX_TOKENS // width)
    ]


def cut_alike(step: Step) -> list[Rectangle]:
    """The same, each row by itself in pieces that lie within one block of positions, all as wide as a block.

    So the shape of whatever is computed for an id depends on its position alone, not on its company or its chunk.
    """
    found = []
    for row, (begin, end) in enumerate(pairwise(step.row_starts.tolist())):
        at = begin
        while at < end:
            position = int(step.positions[at])
            upto = min(end, at + BLOCK_TOKENS - position % BLOCK_TOKENS)
            columns = power_of_two(position // BLOCK_TOKENS + 1)
            found.append(Rectangle((RowPiece(row, at, upto),), 1, BLOCK_TOKENS, max(4, columns)))
            at = upto
    return found


def _rectangle(step: Step, width: int, pieces: list[RowPiece]) -> Rectangle:
    deepest = max(int(step.positions[piece.end - 1]) for piece in pieces) + 1
    columns = power_of_two(-(-deepest // BLOCK_TOKENS))
    return Rectangle(tuple(pieces), power_of_two(len(pieces)), width, max(4, columns))


def is_decode(rectangle: Rectangle) -> bool:
    return rectangle.width <= DECODE_WIDTH
