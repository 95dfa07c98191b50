"""Takes a Markdown fence off a script, and tells from the text at a syntax error what a model has done to it."""

from __future__ import annotations

import re
from typing import Final

from cellblock.script.lines import line_of

_OPENING: Final = re.compile(r"[ \t]*+(?:```|~~~)[ \t]*+[\w+#.-]*+[ \t]*+\r?")

MOST_PROSE: Final = 20
"""Bounds the lines before a fence."""

_HIDDEN: Final = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_ENTITY: Final = re.compile(r"&(?:lt|gt|amp|quot|apos|#39);")

_PYTHON: Final = re.compile(
    r"\s*+(?:from [\w.]++ import |import [\w.]++\s*+$|(?:async )?def \w|(?:for|if|while|with|elif) .*:\s*+$)"
)

FENCED: Final = "Send the code alone, as JavaScript, without a Markdown fence."
NOT_ASYNC: Final = (
    "`await` stands in a function that is not async: write `async` before its parameters, and "
    "`await Promise.all(list.map(async …))` around callbacks."
)


def unfenced(code: str) -> str:
    """Gives a script without the one Markdown fence around it, and without the prose around that; its lines stay where
    they are. No script begins a line with three backticks, and only prose stands before such a line without a comment.
    """
    lines = code.split("\n")
    opening = next((at for at, line in enumerate(lines[: MOST_PROSE + 1]) if _OPENING.fullmatch(line)), None)
    if opening is None:
        return code
    fence, prose, inside = lines[opening].strip()[:3], "\n".join(lines[:opening]), lines[opening + 1 :]
    if prose.strip() and (fence == "~~~" or "`" in prose or "/*" in prose):
        return code
    closing = next((at for at, line in enumerate(inside) if line.strip().startswith(fence)), None)
    if closing is not None:
        if inside[closing].strip() != fence or any("`" in line for line in inside[closing + 1 :]):
            return code
        inside[closing:] = [""]
    return "\n".join(["" for _ in range(opening + 1)] + inside)


def syntax_hint(code: str, line: int, column: int) -> str | None:
    """Says what has become of a script's text in transit, or what stands at a syntax error; None where it is neither.

    Args:
        code: The script.
        line: Of the error, from 1.
        column: In UTF-16 units, from 1.
    """
    text = line_of(code, line)
    if (hidden := _HIDDEN.search(text)) is not None:
        return f"The invisible character U+{ord(hidden[0]):04X} stands in line {line}: take it out."
    if (entity := _ENTITY.search(text)) is not None:
        return f"HTML entities such as `{entity[0]}` stand for characters: write `<`, `>`, `&` and quotes themselves."
    if "\\n" in text and len(code.splitlines()) < 3 and text[max(0, column - 3) : column + 2].count("\\"):
        return "Line breaks stand as the two characters `\\n`: send real line breaks."
    if "```" in text or "~~~" in text:
        return FENCED
    if any(map(_PYTHON.match, code.splitlines()[:line])):
        return "It looks like Python: write JavaScript, as the tool's description shows."
    if re.search("[“”‘’]", text):
        return "Write plain quotes in place of typographic ones."
    if re.search(r"\bawait\b", text[max(0, column - 8) : column + 6]):
        return NOT_ASYNC
    return None
