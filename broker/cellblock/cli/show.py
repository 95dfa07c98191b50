"""What commands print for people: the same facts as their JSON, laid out for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cellblock.base.terminal import Painter
from cellblock.base.visible_text import legible

DESCRIPTION_CHARS: Final = 100
"""Of a description in a list."""

WIDTH: Final = 100
"""Columns of running text."""


def search_text(results: Sequence[Mapping[str, Any]], paint: Painter) -> str:
    """Search results, a line each."""
    lines: list[str] = []
    for result in results:
        description = " ".join(str(result.get("description") or "").split())[:DESCRIPTION_CHARS]
        server, tool = visible(str(result["serverId"])), visible(str(result["toolName"]))
        lines.append(
            f"{paint(f'{server}.', 'dim')}{paint(tool, 'bold', 'cyan')}  {visible(description)}".rstrip()
        )
    return "\n".join(lines) or "nothing found"


def tool_text(found: Mapping[str, Any], paint: Painter) -> str:
    """One tool as `inspect` has it."""
    name = f"{visible(str(found['serverId']))}.{visible(str(found['toolName']))}"
    lines = [paint(name, "bold", "cyan")]
    if found.get("warning"):
        lines += ["", paint(visible(str(found["warning"])), "yellow")]
    for paragraph in str(found.get("description") or "").split("\n"):
        lines += textwrap.wrap(visible(paragraph), WIDTH) or [""]
    lines += ["", paint("In a script", "bold")]
    lines.append(f'  import {{ {found["exportName"]} }} from "{found["module"]}";')
    lines += [
        "",
        paint("Declaration", "bold"),
        *(f"  {line}" for line in shown_lines(found.get("declaration"))),
    ]
    if found.get("note"):
        lines += ["", *textwrap.wrap(str(found["note"]), WIDTH)]
    for example in found.get("examples", ()):
        lines += ["", paint("Example", "bold"), f"  {visible(str(example))}"]
    lines += ["", paint("With --json: the schemas.", "dim")]
    return "\n".join(lines)


def visible(text: str) -> str:
    """Text that a server chose, without what a terminal would act on."""
    return legible(text)


def shown_lines(text: object) -> list[str]:
    """The lines of a text, each safe to print."""
    return [visible(line) for line in str(text or "").rstrip().split("\n")]
