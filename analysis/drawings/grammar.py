"""Which tokens a schema allows, token by token: real masks over a vocabulary that fits a page."""

from __future__ import annotations

from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.vocab.table import Vocabulary

from analysis.drawings.canvas import GREEN, GREY, INK, ORANGE, Canvas

SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["blue", "grey"]}, "warm": {"type": "boolean"}},
    "required": ["sky", "warm"],
    "additionalProperties": False,
}
TOKENS = (
    "{",
    '"',
    '{"',
    "sky",
    "warm",
    '":',
    " ",
    "bl",
    "ue",
    "gr",
    "ey",
    "green",
    '",',
    ", ",
    "true",
    "fal",
    "se",
    "}",
    "<end>",
)
ANSWER = ("{", '"', "sky", '":', " ", '"', "bl", "ue", '",', " ", '"', "warm", '":', " ", "true", "}", "<end>")
LEFT, TOP, CELL_W, CELL_H = 64, 96, 44, 20


def masks() -> list[tuple[list[bool], bytes]]:
    """Before each token of the answer: what is allowed, and what is forced."""
    pieces: list[bytes | None] = [token.encode() for token in TOKENS[:-1]]
    end = len(pieces)
    vocabulary = Vocabulary([*pieces, None], {end: "<end>"}, end_ids=(end,))
    matcher = GrammarSpace(vocabulary).matcher(check_schema(SCHEMA))
    place, made = matcher.start, []
    for token in ANSWER:
        mask = matcher.mask(place)
        allowed = [bool(mask[i // 32] >> (i % 32) & 1) for i in range(len(TOKENS))]
        number = TOKENS.index(token)
        assert allowed[number], (token, "isn't allowed there")
        made.append((allowed, matcher.forced(place)))
        after = matcher.advance(place, number) if number != end else place
        assert after is not None
        place = after
    return made


def draw() -> str:
    made = masks()
    bottom = TOP + CELL_H * len(TOKENS)
    canvas = Canvas(LEFT + CELL_W * len(made) + 16, bottom + 76, "Token masks of a schema")
    canvas.text(12, 22, '{"sky": "blue" or "grey", "warm": true or false}: which tokens may come next', bold=True)
    canvas.legend(
        12, 46, [(GREEN, "allowed"), (ORANGE, "allowed, and taken"), (GREY, "masked: their probability is 0")]
    )
    for row, token in enumerate(TOKENS):
        canvas.text(LEFT - 8, TOP + CELL_H * row + 14, token if token != " " else "blank", at="end", size=11)
    for column, ((allowed, forced), taken) in enumerate(zip(made, ANSWER, strict=True)):
        x = LEFT + column * CELL_W
        canvas.text(x + CELL_W / 2, TOP - 10, taken if taken != " " else "blank", at="middle", size=11, bold=True)
        for row, is_allowed in enumerate(allowed):
            fill = (ORANGE if TOKENS[row] == taken else GREEN) if is_allowed else GREY
            canvas.box(x + 1, TOP + CELL_H * row, CELL_W - 2, CELL_H - 2, fill, line="#ffffff")
        if forced:
            canvas.line(x + 4, bottom + 12, x + CELL_W - 4, bottom + 12, ink=INK)
            canvas.text(x + CELL_W / 2, bottom + 26, forced.decode()[:6], at="middle", size=10)
    canvas.text(12, TOP - 10, "answer:", size=11)
    canvas.text(12, bottom + 16, "forced:", size=11)
    said = "A column is the mask of one place in the answer. A token may cross the grammar's own words, as {\" does."
    canvas.text(12, bottom + 48, said)
    said = "Where bytes are forced nothing is decided: they are drafted, and several tokens cost one run of the model."
    canvas.text(12, bottom + 64, said)
    return canvas.svg()
