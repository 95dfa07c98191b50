"""Pictures as plain SVG, readable on light and dark pages: bars, and panels over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]
Mark = tuple[float, str]
"""Seconds, and what died then: host or upstream; anything else counts as a worker."""

WIDTH: Final = 640
TOP: Final = 40
COLOURS: Final = ("#2f7ed8", "#d8632f", "#3a9d5d", "#8e5bd0", "#b8860b", "#c2407a", "#55707f")

WIDE: Final = 960
PANEL_LEFT, PANEL_RIGHT, PANEL_TOP, PANEL_HEIGHT, PANEL_GAP = 76, 20, 58, 130, 46
MARKS: Final = {"host": "#c2407a", "worker": "#8c959f", "upstream": "#8e5bd0"}
TICKS: Final = {"worker": 7, "upstream": 14}
"""How long the tick of a mark is, in pixels; a host's goes through all panels."""

STYLE: Final = (
    "<style>text{font:12px system-ui,sans-serif;fill:#57606a}.t{font-size:14px;font-weight:600}"
    ".g{stroke:#8c959f;stroke-opacity:.3}@media(prefers-color-scheme:dark){text{fill:#adbac7}}</style>"
)


@dataclass(frozen=True)
class Line:
    """A curve of a panel."""

    name: str
    points: Points


@dataclass(frozen=True)
class Panel:
    """Curves over one vertical axis; `log` makes that axis logarithmic."""

    title: str
    lines: Sequence[Line]
    log: bool = False


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


def panels(title: str, total: float, shown: Sequence[Panel], deaths: Sequence[Mark]) -> str:
    """Draws panels over one time axis of `total` seconds; deaths of hosts are lines through all, others ticks below."""
    bottom = PANEL_TOP + len(shown) * (PANEL_HEIGHT + PANEL_GAP) - PANEL_GAP + 12

    def x_of(at: float) -> float:
        return PANEL_LEFT + (WIDE - PANEL_LEFT - PANEL_RIGHT) * at / total

    parts = [
        _text(PANEL_LEFT, 24, title, css="t"),
        _text(
            WIDE - PANEL_RIGHT,
            24,
            "deaths and pauses: dashed a host, ticks below workers (grey) and upstream servers (violet)",
            anchor="end",
        ),
    ]
    for at, role in deaths:
        kind = role if role in MARKS else "worker"
        top, end = (bottom, bottom + TICKS[kind]) if kind in TICKS else (PANEL_TOP - 8, bottom)
        style = f'stroke="{MARKS[kind]}"' + ("" if kind in TICKS else ' stroke-dasharray="3 3"')
        x = f"{x_of(at):.1f}"
        parts.append(f'<line {style} x1="{x}" x2="{x}" y1="{top}" y2="{end}"/>')
    for number, panel in enumerate(shown):
        top = PANEL_TOP + number * (PANEL_HEIGHT + PANEL_GAP)
        values = [value for line in panel.lines for _, value in line.points]
        y_of, marks = _axis(values, top, top + PANEL_HEIGHT, log=panel.log)
        parts += [
            _text(PANEL_LEFT, top - 8, panel.title),
            *_grid(y_of, marks, PANEL_LEFT, WIDE - PANEL_RIGHT),
        ]
        right = float(WIDE - PANEL_RIGHT)
        for line, colour in reversed([*zip(panel.lines, COLOURS, strict=False)]):
            parts.append(_text(right, top - 8, line.name, anchor="end"))
            right -= 7 * len(line.name) + 12
            parts.append(f'<circle fill="{colour}" cx="{right:.0f}" cy="{top - 12}" r="4"/>')
            right -= 16
            if line.points:
                parts.append(_curve(line.points, x_of, y_of, colour))
    step = next((step for step in (10, 30, 60, 120, 300, 600) if total / step <= 12), 1800)
    parts += [
        _text(x_of(at), bottom + 34, f"{at // 60}:{at % 60:02}", anchor="middle")
        for at in range(0, int(total) + 1, step)
    ]
    return _svg(WIDE, bottom + 74, title, parts)


def _axis(
    values: Iterable[float], top: float, floor: float, *, log: bool
) -> tuple[Callable[[float], float], list[float]]:
    """Returns where a value is between `floor` and `top`, and the values to mark."""
    known = [value for value in values if value > 0 or not log]
    high = max(known, default=10.0 if log else 1.0) * 1.05 or 1.0
    if not log:
        unit = 10 ** math.floor(math.log10(high / 4))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= high / 4)
        marks = [step * count for count in range(int(high / step) + 1)]
        return lambda value: floor - value / high * (floor - top), marks
    low = min(known, default=1.0) * 0.8
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    span = math.log(high / low)
    return (
        lambda value: floor - math.log(max(value, low) / low) / span * (floor - top),
        [mark for mark in marks if low <= mark <= high],
    )


def _grid(y_of: Callable[[float], float], marks: Iterable[float], left: float, right: float) -> list[str]:
    parts: list[str] = []
    for mark in marks:
        y = y_of(mark)
        parts.append(f'<line class="g" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 4, f"{mark:g}", anchor="end"))
    return parts


def _curve(
    points: Points, x_of: Callable[[float], float], y_of: Callable[[float], float], colour: str
) -> str:
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", css: str = "", more: str = "") -> str:
    of = f' class="{css}"' if css else ""
    return f'<text{of} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *parts, "</svg>", ""])
