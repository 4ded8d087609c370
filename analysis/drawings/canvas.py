"""A few shapes as SVG, on white so that both colour schemes of the site show them alike."""

from __future__ import annotations

from html import escape

INK = "#1f2937"
FAINT = "#9ca3af"
PAPER = "#ffffff"
BLUE, GREEN, ORANGE, PURPLE, GREY, RED = "#7aa7e0", "#86c79a", "#eeb36b", "#b9a3dc", "#e5e7eb", "#e08a8a"


class Canvas:
    """Owner of a drawing's elements. Lengths are pixels, y downwards; text is set at its baseline."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, *, line: str = INK, dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="3 2"' if dashed else ""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._parts.append(f'<rect {place} rx="2" fill="{fill}" stroke="{line}"{dash}/>')

    def text(
        self, x: float, y: float, said: str, *, at: str = "start", size: int = 12, ink: str = INK, bold: bool = False
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        style = f'font-size="{size}" text-anchor="{at}" fill="{ink}"{weight}'
        self._parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(said)}</text>')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, ink: str = INK, dashed: bool = False, arrow: bool = False
    ) -> None:
        more = (' stroke-dasharray="3 3"' if dashed else "") + (' marker-end="url(#tip)"' if arrow else "")
        self._parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{ink}"{more}/>')

    def legend(self, x: float, y: float, entries: list[tuple[str, str]]) -> None:
        """Colour and words, side by side; about 7 pixels a letter."""
        for fill, said in entries:
            self.box(x, y - 10, 12, 12, fill)
            self.text(x + 17, y, said)
            x += 30 + 6.4 * len(said)

    def svg(self) -> str:
        width, height = self._size
        tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif" role="img">',
            f"<title>{escape(self._title)}</title>",
            f'<defs>{tip}<path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"
