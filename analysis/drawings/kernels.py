"""How weights lie in memory, by the layouts' own numbers, and who computes which part of a product."""

from __future__ import annotations

from imp_server.backends.cpu.layouts import BLOCK, LAYOUTS, LINE, PANEL_ROWS

from analysis.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, Canvas

N_OUT, N_IN = 96, 128
SHOWN = ("Q4_0", "Q4_K", "Q6_K", "Q8_0")
OF_FILE = {"Q4_0": 18 / 32, "Q4_K": 144 / 256, "Q6_K": 210 / 256, "Q8_0": 34 / 32}
"""Bytes per weight in a GGUF file."""
LEFT, TOP, BLOCK_W, PANEL_H = 14, 64, 62, 26
THREADS = (BLUE, GREEN)


def bytes_per_weight(name: str, n_in: int = 4096) -> float:
    return LAYOUTS[name].panel_bytes(n_in // BLOCK) / (PANEL_ROWS * n_in)


def draw() -> str:
    canvas = Canvas(760, 420, "Packed weights and who computes them")
    canvas.text(
        LEFT,
        22,
        f"A matrix of {N_OUT} outputs and {N_IN} inputs: panels of {PANEL_ROWS} outputs, blocks of {BLOCK} inputs",
        bold=True,
    )
    canvas.legend(
        LEFT, 46, [(THREADS[0], "claimed by thread 1"), (THREADS[1], "by thread 2"), (GREY, "not claimed yet")]
    )
    matrix(canvas)
    panel(canvas, 330, TOP)
    table(canvas, 270)
    return canvas.svg()


def matrix(canvas: Canvas) -> None:
    claimed = (0, 1, 0, 0, None, None)
    for row in range(N_OUT // PANEL_ROWS):
        thread = claimed[row]
        for block in range(N_IN // BLOCK):
            fill = GREY if thread is None else THREADS[thread]
            canvas.box(LEFT + block * BLOCK_W, TOP + row * PANEL_H, BLOCK_W, PANEL_H, fill)
    y = TOP + PANEL_H * (N_OUT // PANEL_ROWS)
    canvas.line(LEFT, TOP + PANEL_H / 2, LEFT + BLOCK_W * (N_IN // BLOCK) - 6, TOP + PANEL_H / 2, arrow=True)
    canvas.text(LEFT, y + 18, "Each output is one chain of sums along the arrow,")
    canvas.text(LEFT, y + 33, "whoever computes it: so results don't depend on threads.")


def panel(canvas: Canvas, x: float, y: float) -> None:
    layout = LAYOUTS["Q4_0"]
    n_blocks = layout.span
    header, payload = layout.header_bytes(n_blocks), layout.bits * LINE
    canvas.text(x, y + 8, f"The beginning of a panel in Q4_0, {header + n_blocks * payload} bytes in one stream:")
    per_byte = 400 / (header + n_blocks * payload)
    canvas.box(x, y + 18, header * per_byte, 30, ORANGE)
    canvas.text(x + header * per_byte / 2, y + 37, str(header), at="middle", size=10)
    for block in range(n_blocks):
        for number in range(layout.bits):
            at = x + (header + block * payload + number * LINE) * per_byte
            canvas.box(at, y + 18, LINE * per_byte, 30, PURPLE if block % 2 == 0 else BLUE)
            canvas.text(at + LINE * per_byte / 2, y + 37, str(LINE), at="middle", size=10)
    canvas.text(
        x,
        y + 66,
        f"orange: {PANEL_ROWS} scales of {n_blocks} blocks; then {layout.bits} cache lines of codes a block",
        size=11,
    )
    canvas.text(x, y + 92, "One such line, byte by byte: 4 inputs of each of 16 outputs, two codes a byte", size=11)
    for output in range(PANEL_ROWS):
        for byte in range(4):
            at = x + (4 * output + byte) * 6.2
            canvas.box(at, y + 100, 6.2, 22, (PURPLE, BLUE)[output % 2], line="#ffffff")
        canvas.text(x + 4 * output * 6.2 + 12.4, y + 136, str(output), at="middle", size=9)
    canvas.text(x, y + 156, "16 outputs in a vector register: an input is loaded once, and feeds them all", size=11)


def table(canvas: Canvas, y: float) -> None:
    canvas.text(LEFT, y + 20, "Bytes per weight: packed, and in the file", bold=True)
    for number, name in enumerate(SHOWN):
        at, packed = y + 34 + 26 * number, bytes_per_weight(name)
        canvas.text(LEFT, at + 15, name)
        canvas.box(LEFT + 56, at, packed * 400, 9, PURPLE, line=INK)
        canvas.box(LEFT + 56, at + 10, OF_FILE[name] * 400, 9, GREY, line=INK)
        canvas.text(LEFT + 66 + packed * 400, at + 15, f"{packed:.4f}, {OF_FILE[name]:.4f}", size=11)
