"""The picture of a soak as SVG, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from soak.faults import Fault
from soak.figures import Point

WIDTH: Final = 960
LEFT, RIGHT = 76, 20
PANEL_HEIGHT: Final = 130
GAP: Final = 46
TOP: Final = 58
PLOT: Final = WIDTH - LEFT - RIGHT

STYLE: Final = """
  .page { fill: #ffffff } text { font: 12px system-ui, sans-serif; fill: #454540 }
  text.title { font-size: 15px; fill: #1a1a18 }
  .axis { stroke: #b9b8b0 } .grid { stroke: #e6e5df } path { fill: none; stroke-width: 1.6; stroke-linejoin: round }
  .a { stroke: #2a78d6 } .b { stroke: #c2410c } .dot.a { fill: #2a78d6 } .dot.b { fill: #c2410c }
  .host { stroke: #b91c1c; stroke-dasharray: 3 3 } .worker { stroke: #77766f } .upstream { stroke: #7c3aed }
  @media (prefers-color-scheme: dark) {
    .page { fill: #171716 } text { fill: #c4c3bb } text.title { fill: #f3f2ec }
    .axis { stroke: #55544e } .grid { stroke: #2d2d2a }
    .a { stroke: #5c9ff0 } .b { stroke: #f08a4b } .dot.a { fill: #5c9ff0 } .dot.b { fill: #f08a4b }
    .host { stroke: #f87171 } .worker { stroke: #8d8c84 } .upstream { stroke: #a78bfa }
  }
"""


@dataclass(frozen=True)
class Line:
    """One curve of a panel."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """Curves over one vertical axis, two at most; `log` makes that axis logarithmic."""

    title: str
    lines: Sequence[Line]
    log: bool = False


def draw(title: str, total: float, panels: Sequence[Panel], faults: Sequence[Fault]) -> str:
    """The whole picture: panels over one time axis of `total` seconds, deaths of hosts as lines through all."""
    height = TOP + len(panels) * (PANEL_HEIGHT + GAP) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{_escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="24">{_escape(title)}</text>',
    ]
    bottom = TOP + len(panels) * (PANEL_HEIGHT + GAP) - GAP + 12
    for fault in faults:
        if fault.role == "host":
            x = _x(fault.at, total)
            parts.append(f'<line class="host" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom}"/>')
    for number, panel in enumerate(panels):
        parts += _panel(panel, TOP + number * (PANEL_HEIGHT + GAP), total)
    parts += _time_axis(bottom, total)
    parts += _ticks(faults, bottom, total)
    parts.append("</svg>\n")
    return "\n".join(parts)


def _panel(panel: Panel, top: float, total: float) -> list[str]:
    values = [value for line in panel.lines for _, value in line.points if not panel.log or value > 0]
    low, high = _range(values, log=panel.log)
    floor = top + PANEL_HEIGHT

    def y(value: float) -> float:
        if panel.log:
            return round(floor - math.log(max(value, low) / low) / math.log(high / low) * PANEL_HEIGHT, 1)
        return round(floor - (value - low) / (high - low) * PANEL_HEIGHT, 1)

    parts = [f'<text x="{LEFT}" y="{top - 8}">{_escape(panel.title)}</text>']
    for mark in _marks(low, high, log=panel.log):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark)}" y2="{y(mark)}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(mark) + 4}" text-anchor="end">{mark:g}</text>')
    x = WIDTH - RIGHT
    for css, line in reversed(list(zip("ab", panel.lines, strict=False))):
        parts.append(f'<text x="{x}" y="{top - 8}" text-anchor="end">{_escape(line.name)}</text>')
        x -= 7 * len(line.name) + 12
        parts.append(f'<circle class="dot {css}" cx="{x}" cy="{top - 12}" r="4" stroke="none"/>')
        x -= 16
    for css, line in zip("ab", panel.lines, strict=False):
        steps = [f"{_x(at, total)} {y(value)}" for at, value in line.points]
        if steps:
            parts.append(f'<path class="{css}" d="M{" L".join(steps)}"/>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    return parts


def _time_axis(y: float, total: float) -> list[str]:
    step = next((step for step in (10, 30, 60, 120, 300, 600) if total / step <= 12), 1800)
    return [
        f'<text x="{_x(at, total)}" y="{y + 34}" text-anchor="middle">{at // 60}:{at % 60:02}</text>'
        for at in range(0, int(total) + 1, step)
    ]


def _ticks(faults: Sequence[Fault], y: float, total: float) -> list[str]:
    parts = [
        f'<text x="{WIDTH - RIGHT}" y="24" text-anchor="end">deaths and pauses: dashed a host, '
        "ticks below workers (grey) and upstream servers (violet)</text>"
    ]
    for fault in faults:
        if fault.role != "host":
            css = "upstream" if fault.role == "upstream" else "worker"
            x, length = _x(fault.at, total), 14 if css == "upstream" else 7
            parts.append(f'<line class="{css}" x1="{x}" x2="{x}" y1="{y}" y2="{y + length}"/>')
    return parts


def _range(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    if not values:
        return (1.0, 10.0) if log else (0.0, 1.0)
    if log:
        return 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values) * 1.01))
    return 0.0, max(values) * 1.08 or 1.0


def _marks(low: float, high: float, *, log: bool) -> list[float]:
    if log:
        return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    rough = (high - low) / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [step * count for count in range(int(high / step) + 1)]


def _x(at: float, total: float) -> float:
    return round(LEFT + PLOT * at / total, 1)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
