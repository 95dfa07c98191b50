"""Pictures as plain SVG, readable on light and dark pages: lines over a numbered axis, and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

Series = dict[str, list[tuple[float, float]]]

WIDTH: Final = 640
HEIGHT: Final = 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 56
COLOURS: Final = ("#2f7ed8", "#d8632f", "#3a9d5d", "#8e5bd0", "#b8860b", "#c2407a", "#55707f")
STYLE: Final = (
    "<style>text{font:12px system-ui,sans-serif;fill:#57606a}.t{font-size:14px;font-weight:600}"
    ".g{stroke:#8c959f;stroke-opacity:.3}@media(prefers-color-scheme:dark){text{fill:#adbac7}}</style>"
)


def lines(
    title: str, x_label: str, y_label: str, series: Series, *, log_y: bool = False, even_x: bool = False
) -> str:
    """A line chart. `even_x` spaces the x values evenly, in their order."""
    points = [point for one in series.values() for point in one]
    if not points:
        return ""
    xs = sorted({x for x, _ in points})
    y_high = max(y for _, y in points) * 1.05 or 1.0
    y_low = min(y for _, y in points if y > 0) * 0.8 if log_y else 0.0

    def x_of(x: float) -> float:
        share = xs.index(x) / max(1, len(xs) - 1) if even_x else (x - xs[0]) / ((xs[-1] - xs[0]) or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(y: float) -> float:
        share = y / y_high
        if log_y:
            share = math.log(max(y, y_low) / y_low) / (math.log(y_high / y_low) or 1)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [_frame(title, x_label, y_label)]
    ticks = _log_ticks(y_low, y_high) if log_y else [y_high * step / 5 for step in range(6)]
    for value in ticks:
        y = y_of(value)
        parts.append(f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    parts.extend(
        f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>'
        for x in (xs if len(xs) <= 12 else xs[:: len(xs) // 8])
    )
    for at, (name, line) in enumerate(series.items()):
        colour = COLOURS[at % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        y = TOP + 14 + 16 * at
        parts.append(f'<rect x="{LEFT + 10}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 26}" y="{y}">{escape(name)}</text>')
    return _svg(HEIGHT, parts)


def bars(title: str, rows: Sequence[tuple[str, float]], unit: str) -> str:
    """A horizontal bar for each row, with its value."""
    height = TOP + 26 * len(rows) + 16
    most = max((value for _, value in rows), default=0.0) or 1.0
    left, room = 220, WIDTH - 220 - 90
    parts = [f'<text class="t" x="16" y="24">{escape(title)}</text>']
    for at, (name, value) in enumerate(rows):
        y = TOP + 26 * at
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        width = max(1.0, value / most * room)
        parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="20" fill="{COLOURS[0]}"/>')
        parts.append(f'<text x="{left + width + 6:.1f}" y="{y + 15}">{value:.2f} {escape(unit)}</text>')
    return _svg(height, parts)


def _svg(height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join([head, STYLE, *parts, "</svg>", ""])


def _frame(title: str, x_label: str, y_label: str) -> str:
    middle = (LEFT + WIDTH - RIGHT) / 2
    return (
        f'<text class="t" x="16" y="24">{escape(title)}</text>'
        f'<text x="{middle:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text x="16" y="{HEIGHT / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 16 {HEIGHT / 2:.0f})">{escape(y_label)}</text>'
    )


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    return [value for value in values if low <= value <= high]
