"""Bars as plain SVG, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 640
TOP: Final = 40
COLOURS: Final = ("#2f7ed8", "#d8632f", "#3a9d5d", "#8e5bd0", "#b8860b", "#c2407a", "#55707f")

STYLE: Final = (
    "<style>text{font:12px system-ui,sans-serif;fill:#57606a}.t{font-size:14px;font-weight:600}"
    ".g{stroke:#8c959f;stroke-opacity:.3}@media(prefers-color-scheme:dark){text{fill:#adbac7}}</style>"
)


def bars(
    title: str, rows: Sequence[tuple[str, float]], unit: str, notes: Mapping[str, str] | None = None
) -> str:
    """Draws a horizontal bar for each row, with its value, and a note to the row of that name."""
    most = max((value for _, value in rows), default=0.0) or 1.0
    left, room = 220, WIDTH - 220 - (220 if notes else 90)
    parts = [_text(16, 24, title, css="t")]
    for at, (name, value) in enumerate(rows):
        y, width = TOP + 26 * at, max(1.0, value / most * room)
        parts.append(_text(left - 8, y + 15, name, anchor="end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="20" fill="{COLOURS[0]}"/>')
        note = f", {notes[name]}" if notes and name in notes else ""
        number = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        parts.append(_text(left + width + 6, y + 15, f"{number} {unit}{note}"))
    return _svg(WIDTH, TOP + 26 * len(rows) + 16, title, parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start", css: str = "", more: str = "") -> str:
    of = f' class="{css}"' if css else ""
    return f'<text{of} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *parts, "</svg>", ""])
