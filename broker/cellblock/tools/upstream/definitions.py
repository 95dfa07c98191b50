"""Definitions makes one tool's definition as Cellblock keeps it: capped, in a canonical form, with its hash.

Two definitions are the same when their canonical JSON is, byte for byte: keys sorted, no white space, one spelling for
each number (RFC 8785, but sorted by code point), and text as it is, since look-alike text is another text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from cellblock.base.errors import shorten
from cellblock.base.json import is_array, is_object
from cellblock.base.visible import visible, visible_schema, visible_tree
from cellblock.tools.catalog.model import INTRODUCTION, ToolEntry, Withheld
from cellblock.tools.catalog.naming import identifier
from cellblock.tools.schemas.cost import NotCheckable, measured
from cellblock.tools.upstream.wire.messages import decoded
from cellblock.tools.upstream.wire.repair import member, schema

MAX_NAME_CHARS: Final = 256
"""Caps a tool's name: MCP advises 128, and every run's modules hold it."""

MAX_TEXT_CHARS: Final = 32 * 1024
"""Cuts a tool's title or description, and a server's instructions: about 8,000 tokens of a model's context."""

MAX_TOOL_BYTES: Final = 128 * 1024
"""Caps one tool's definition as JSON; the largest seen in public servers is about 30 KiB."""

MAX_TOOL_DEPTH: Final = 100
"""Caps the nesting of a definition: the JSON parser of the SDK refuses a message at 200; real schemas stay under 30."""

MAX_TOOL_VALUES: Final = 10_000
"""Caps the JSON values in a definition; a schema with more would not be checked either."""

MALFORMED: Final = "(malformed)"
"""Stands for the name of a tool that has none."""

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")

TEXTS: Final = ("title", "description")

LATER: Final = ("icons", "_meta")
"""Names the parts of a definition that pins of 0.1.0 do not have."""

_LISTED: Final = ("title", *LATER)
_IMAGE: Final = re.compile(r"(?:https://|data:image/)[!-~]+", re.IGNORECASE)

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
        odd: Whether parts of its schemas were no schemas, and are mended.
        shown: The definition without hidden characters, where that is known.
        early: Whether it is a pin of 0.1.0, which says nothing of the parts in `LATER`.
    """

    name: str
    digest: str
    size: int = field(compare=False)
    definition: Mapping[str, Any] = field(compare=False)
    odd: bool = field(default=False, compare=False)
    as_task: bool = field(default=False, compare=False)
    shown: Mapping[str, Any] | None = field(default=None, compare=False)
    early: bool = False

    def is_as_pinned(self, pin: ToolDefinition) -> bool:
        """Says whether a pin is of this definition, as far as it says something of it."""
        return (self.without_later() if pin.early else self).digest == pin.digest

    def without_later(self) -> ToolDefinition:
        """Returns the definition as 0.1.0 has pinned it."""
        early = {key: part for key, part in self.definition.items() if key not in LATER}
        return self if len(early) == len(self.definition) else from_json(early)

    def as_entry(self, export: str) -> ToolEntry:
        """Returns the tool under a name in its server's module."""
        shown = self.shown or visible_schema(self.definition)
        return ToolEntry(
            tool_name=self.name,
            export_name=export,
            description=shown.get("description"),
            annotations=shown.get("annotations"),
            input_schema=shown.get("inputSchema"),
            output_schema=shown.get("outputSchema"),
            listed=visible_tree({key: shown[key] for key in _LISTED if key in shown}),
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


def admit(item: bytes) -> ToolDefinition | Withheld:
    """Returns the definition of a tool of a list, or why it is left out: it is malformed, or over a cap. What of it is
    odd is mended, dropped or passed on alone."""
    if len(item) > 2 * MAX_TOOL_BYTES:
        said = member(item, "name")
        said = said if isinstance(said, str) else MALFORMED
        return _over(said, "its definition", len(item), "bytes", MAX_TOOL_BYTES)
    try:
        tool: object = decoded(item)
    except (ValueError, RecursionError):
        return left_out(MALFORMED, "it cannot be read")
    if not is_object(tool):
        return left_out(MALFORMED, "it is no object")
    name: object = tool.get("name")
    if isinstance(name, int | float) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name:
        return left_out(MALFORMED, "its name is empty" if name == "" else "its name is no text")
    if len(name) > MAX_NAME_CHARS:
        return _over(name, "its name", len(name), "characters", MAX_NAME_CHARS)
    texts = {key: _cut(tool[key]) for key in TEXTS if isinstance(tool.get(key), str)}
    annotations: object = tool.get("annotations")
    given = {
        "name": name,
        **texts,
        "inputSchema": tool.get("inputSchema"),
        "outputSchema": tool.get("outputSchema"),
        "annotations": _annotations(annotations) if is_object(annotations) else None,
    }
    plain = {key: value for key, value in given.items() if value is not None}
    execution: object = tool.get("execution")
    as_task = is_object(execution) and execution.get("taskSupport") == "required"
    meta: object = tool.get("_meta")
    later = {"icons": _icons(tool.get("icons")), "_meta": meta if is_object(meta) else {}}
    whole = _within_caps(name, plain | {key: part for key, part in later.items() if part}, as_task=as_task)
    # No tool is left out for what is beside it.
    return whole if isinstance(whole, ToolDefinition) else _within_caps(name, plain, as_task=as_task)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}…"


def _within_caps(name: str, plain: dict[str, Any], *, as_task: bool) -> ToolDefinition | Withheld:
    try:
        depth = len(measured(plain, MAX_TOOL_VALUES))
    except NotCheckable:
        return left_out(name, f"its definition has too many values, over {MAX_TOOL_VALUES}")
    if depth > MAX_TOOL_DEPTH:
        return _over(name, "its definition", depth, "levels", MAX_TOOL_DEPTH)
    is_odd = False
    for key in ("inputSchema", "outputSchema"):
        given = plain.get(key)
        if isinstance(given, dict | bool):
            plain[key] = schema(given)
        else:
            plain.pop(key, None)
        is_odd = is_odd or plain.get(key) != given
    admitted = from_json(plain)
    if admitted.size > MAX_TOOL_BYTES:
        return _over(name, "its definition", admitted.size, "bytes", MAX_TOOL_BYTES)
    return replace(admitted, odd=is_odd, as_task=as_task, shown=visible_schema(plain))


def _annotations(given: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the annotations that MCP has, as far as they are of their type."""
    known = {key: value for key in _HINTS if isinstance(value := given.get(key), bool)}
    title = given.get("title")
    return ({"title": title} if isinstance(title, str) else {}) | known or None


def _icons(given: object) -> list[dict[str, Any]]:
    """Returns the icons that are images for a client to show, with the members that MCP has."""
    from mcp_types import Icon  # loads long, and a run without servers does without it

    known: list[dict[str, Any]] = []
    for one in given if is_array(given) else ():
        with contextlib.suppress(ValidationError):
            icon = Icon.model_validate(one, by_name=False)
            if _IMAGE.fullmatch(icon.src):
                known.append(icon.model_dump(by_alias=True, exclude_none=True))
    return known


def shown(name: str) -> str:
    """Returns a name that a server chose, for a sentence, a log or a terminal: short, and nothing in it that is
    invisible. An empty one is of its introduction."""
    return visible(shorten(name or INTRODUCTION, SHOWN_NAME_CHARS), instead=None)


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


def _plain(value: Any) -> Any:
    """Returns the same data with whole floats as integers: `1.0` and `1` are one number in JSON Schema."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if is_array(value):
        return [_plain(item) for item in value]
    if is_object(value):
        return {key: _plain(item) for key, item in value.items()}
    return value
