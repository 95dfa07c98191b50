"""Definitions makes one tool's definition as Cellblock keeps it: capped, in a canonical form, with its hash.

Two definitions are the same when their canonical JSON is, byte for byte: keys sorted, no white space, one spelling for
each number (RFC 8785, but sorted by code point), and text as it is, since look-alike text is another text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import mcp_types as types

from cellblock.base.json import is_array, is_object
from cellblock.base.terminal import is_visible
from cellblock.tools.catalog.model import ToolEntry, Withheld
from cellblock.tools.catalog.naming import identifier
from cellblock.tools.upstream.lenience import schemas_of, stubbed_bytes

MAX_NAME_CHARS: Final = 256
"""Caps a tool's name: MCP advises 128, and every run's modules hold it."""

MAX_TEXT_CHARS: Final = 32 * 1024
"""Caps a tool's title or description, and a server's instructions: about 8,000 tokens of a model's context."""

MAX_TOOL_BYTES: Final = 128 * 1024
"""Caps one tool's definition as JSON; the largest seen in public servers is about 30 KiB."""

MAX_TOOL_DEPTH: Final = 100
"""Caps the nesting of a definition: the JSON parser of the SDK refuses a message at 200; real schemas stay under 30."""

MAX_TOOL_VALUES: Final = 10_000
"""Caps the JSON values in a definition; a schema with more would not be checked either."""

SHOWN_NAME_CHARS: Final = 80
"""Bounds an upstream's own name in a sentence."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """Holds what a server says of one tool. Equal when the digests are: `==` on the schemas would take `true` for
    `1`.

    Attributes:
        name: The tool's own name.
        digest: The hash of its canonical form.
        size: The length of that form in bytes.
        definition: What the server says, by the names of MCP; what is absent is left out.
    """

    name: str
    digest: str
    size: int = field(compare=False)
    definition: Mapping[str, Any] = field(compare=False)

    def as_entry(self, export: str) -> ToolEntry:
        """Returns the tool under a name in its server's module."""
        return ToolEntry(
            tool_name=self.name,
            export_name=export,
            description=self.definition.get("description"),
            annotations=self.definition.get("annotations"),
            input_schema=self.definition.get("inputSchema"),
            output_schema=self.definition.get("outputSchema"),
        )


def canonical(value: Any) -> bytes:
    """Returns JSON data in its one canonical spelling. Recursive: cap the depth first."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # A lone surrogate is text that a server may send, and no UTF-8.
    return text.encode("utf-8", "surrogatepass")


def digest(canonical_json: bytes) -> str:
    """Returns the hash of a canonical form, with the name of its algorithm."""
    return f"sha256:{hashlib.sha256(canonical_json).hexdigest()}"


def from_json(definition: Mapping[str, Any]) -> ToolDefinition:
    """Returns the tool of a definition by the names of MCP. Recursive: cap the depth first."""
    spelled = canonical(definition)
    return ToolDefinition(definition["name"], digest(spelled), len(spelled), definition)


def admit(tool: types.Tool) -> ToolDefinition | Withheld:
    """Returns a tool's definition, or why it is left out: the first cap that it is over."""
    if len(tool.name) > MAX_NAME_CHARS:
        return _over(tool.name, "its name", len(tool.name), "characters", MAX_NAME_CHARS)
    if (size := stubbed_bytes(tool)) is not None:
        return _over(tool.name, "its definition", size, "bytes", MAX_TOOL_BYTES)
    for what, text in (("title", tool.title), ("description", tool.description)):
        if text is not None and len(text) > MAX_TEXT_CHARS:
            return _over(tool.name, f"its {what}", len(text), "characters", MAX_TEXT_CHARS)
    input_schema, output_schema = schemas_of(tool)
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    fields = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": input_schema,
        "outputSchema": output_schema,
        "annotations": annotations or None,
    }
    plain = {key: value for key, value in fields.items() if value is not None}
    depth, values = _extent(plain, MAX_TOOL_DEPTH, MAX_TOOL_VALUES)
    if depth > MAX_TOOL_DEPTH:
        return _over(tool.name, "its definition", depth, "levels or more", MAX_TOOL_DEPTH)
    if values > MAX_TOOL_VALUES:
        return _over(tool.name, "its definition", values, "values or more", MAX_TOOL_VALUES)
    admitted = from_json(plain)
    if admitted.size > MAX_TOOL_BYTES:
        return _over(tool.name, "its definition", admitted.size, "bytes", MAX_TOOL_BYTES)
    return admitted


def shown(name: str) -> str:
    """Returns a name that a server chose, for a sentence, a log or a terminal: short, and nothing in it that is
    invisible."""
    short = name if len(name) <= SHOWN_NAME_CHARS else name[: SHOWN_NAME_CHARS - 1] + "…"
    return "".join(char if is_visible(char) else f"\\u{ord(char):04x}" for char in short)


def file_stem(name: str, distinct: str, digits: int) -> str:
    """Returns how a file is named after a server: by what is plain in its name, and by a hash of what tells it from
    others."""
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "_" for char in name)
    hashed = hashlib.sha256(distinct.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{safe[:60]}-{hashed[:digits]}"


def left_out(name: str, why: str, hint: str = "Report it to the server's authors.") -> Withheld:
    """Returns a tool that is listed and not given to scripts."""
    return Withheld(shown(name), identifier(name[:SHOWN_NAME_CHARS]), why, hint)


# ---- inside ------------------------------------------------------------------------------------------


def _over(name: str, what: str, found: int, unit: str, most: int) -> Withheld:
    return left_out(name, f"{what} has {found} {unit}, over {most}")


def _extent(value: Any, max_depth: int, max_values: int) -> tuple[int, int]:
    """Counts levels and JSON values of `value`, level by level and no further than the first cap."""
    depth, count, level = 0, 0, [value]
    while level and depth <= max_depth and count <= max_values:
        depth += 1
        count += len(level)
        below: list[Any] = []
        for item in level:
            if is_object(item):
                below += item.values()
            elif is_array(item):
                below += item
        level = below
    return depth, count


def _plain(value: Any) -> Any:
    """Returns the same data with whole floats as integers: `1.0` and `1` are one number in JSON Schema."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if is_array(value):
        return [_plain(item) for item in value]
    if is_object(value):
        return {key: _plain(item) for key, item in value.items()}
    return value
