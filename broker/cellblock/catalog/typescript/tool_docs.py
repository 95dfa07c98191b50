"""Writes the doc comment of a tool's function: what it does, and facts that its types do not say (section 6.3)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from cellblock.catalog.model import Example, ToolEntry
from cellblock.catalog.outputs import ToolOutput
from cellblock.catalog.typescript.convert import TypeText
from cellblock.catalog.typescript.limits import (
    MAX_DOC_VALUE,
    MAX_EXAMPLES,
    MAX_PROPERTY_DESCRIPTION,
    MAX_TOOL_DESCRIPTION,
)
from cellblock.catalog.typescript.text import comment_lines, json_line, letters, one_line

_MAX_ANNOTATIONS: Final = 20
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_$]")


def tool_doc(
    tool: ToolEntry,
    given: TypeText | None,
    result: TypeText | None,
    output: ToolOutput | None,
    *,
    reading: bool,
    told: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Gives lines safe for a comment: the tool's description, and facts.

    Args:
        tool: The tool.
        given: The type of its input, if it has one.
        result: The type of its output, if one is known.
        output: Where that is known from.
        reading: Whether agents read the comment, so that it is to be short.
        told: Annotations that stand elsewhere, as `annotations_of` gives them.
    """
    facts: list[str] = []
    plain = _ILLEGAL.sub("_", tool.tool_name) if reading else tool.tool_name
    if plain != tool.export_name:
        facts.append(f"MCP tool name: {json_line(tool.tool_name, MAX_DOC_VALUE)}")
    if reading:
        own = [one for one in annotations_of(tool) if one not in told]
        facts.extend([f"[{', '.join(own)}]"] if own else [])
    else:
        facts.extend(f"Annotation {key}: {value}" for key, value in _annotations(tool.annotations))
    if given is not None:
        facts.extend(f"Input: {note}" for note in given.notes)
        facts.extend(f"Warning (input): {warning}" for warning in given.root_warnings)
    if result is not None:
        facts.extend(f"Output: {note}" for note in result.notes)
        facts.extend(f"Warning (output): {warning}" for warning in result.root_warnings)
    if output is not None and (output.source != "declared" or output.disagreement is not None):
        facts.append(f"Output: {one_line(output.note, MAX_TOOL_DESCRIPTION)}")
    if tool.given is not None:
        if tool.given.effect is not None:
            facts.append(f"Effect, as the user says: {tool.given.effect}")
        facts.extend(f"@example {_example(example)}" for example in tool.given.examples[:MAX_EXAMPLES])
    return comment_lines(tool.description or "", MAX_TOOL_DESCRIPTION), facts


def annotations_of(tool: ToolEntry) -> list[str]:
    """Gives a tool's annotations as agents read them: `readOnlyHint`, `!openWorldHint`, `key: value`; no title that
    only says the tool's name again."""
    found: list[str] = []
    for key, value in _annotations(tool.annotations):
        if key == "title" and letters(value) in letters(tool.tool_name):
            continue
        found.append({"true": key, "false": f"!{key}"}.get(value, f"{key}: {value}"))
    return found


def common_annotations(tools: Iterable[ToolEntry]) -> list[str]:
    """Gives what to say once for several tools: of the annotations that all have, the more common ones. A tool with
    another one has to say so itself."""
    each = [annotations_of(tool) for tool in tools]
    keys = [{one.removeprefix("!") for one in own} for own in each]
    counted = Counter(one for own in each for one in own)
    return [
        one
        for one, _ in sorted(counted.items(), key=lambda item: -item[1])
        if len(each) > 1 and all(one.removeprefix("!") in own for own in keys) and _wins(one, counted)
    ]


def _wins(annotation: str, counted: Counter[str]) -> bool:
    name = annotation.removeprefix("!")
    other = name if annotation != name else f"!{name}"
    return counted[annotation] > counted[other] or (counted[annotation] == counted[other] and other != name)


def _annotations(annotations: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Gives keys and values, both safe for a comment."""
    return [
        (one_line(str(key), MAX_DOC_VALUE), json_line(value, MAX_DOC_VALUE))
        for key, value in list((annotations or {}).items())[:_MAX_ANNOTATIONS]
        if value is not None
    ]


def _example(example: Example) -> str:
    shown = json.dumps(example.input, ensure_ascii=False)
    if example.output is not None:
        shown += f" → {json.dumps(example.output, ensure_ascii=False)}"
    return one_line(shown, MAX_PROPERTY_DESCRIPTION)
