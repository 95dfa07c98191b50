"""An output says what a script gets from a tool, and who says so: given by the user, declared by the server, or
observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cellblock.tools.catalog.model import JsonSchema, ServerEntry, ToolEntry

Source = Literal["given", "declared", "observed"]

ResultKind = Literal["value", "json", "text", "result"]
"""Names what a script got: structured content or a Python value; a text that is a JSON object or array;
another text; the whole MCP result (Code Mode specification, section 5.3.2)."""

MCP_RESULT_SCHEMA: dict[str, Any] = {
    "title": "McpToolResult",
    "type": "object",
    "properties": {"content": {"type": "array", "items": {"type": "object"}}},
    "required": ["content"],
}


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Describes what a script gets from a tool: any of the parts that are there.

    Attributes:
        source: Who says so; the sources are never mixed.
        note: The same as one sentence for agents and people; safe text.
        schema: Of a plain value.
        document: Of what `JSON.parse` makes of a text that is always JSON.
        text: Whether it can be a text that is no JSON.
        result: Whether it can be a whole MCP result.
        samples: Results that were looked at, whatever the source of the schema.
        first_seen: Day of the first of them, as `2026-11-01`; None without any.
        last_seen: Day of the last.
        version: Counts the changes of what was observed.
        disagreement: How results did not fit what is declared or given, or None.
        sample: JSON of a result, where keeping it was asked for.
    """

    source: Source
    note: str
    schema: JsonSchema | None = None
    document: JsonSchema | None = None
    text: bool = False
    result: bool = False
    samples: int = 0
    first_seen: str | None = None
    last_seen: str | None = None
    version: int = 1
    disagreement: str | None = None
    sample: str | None = None

    def as_schema(self) -> JsonSchema:
        """Gives one JSON Schema for all parts. JSON in a text is said by `contentSchema`.

        A schema that the server declares stays as it is, with a `$comment` where results did not fit it; another has
        its provenance as its description.
        """
        if self.source == "declared" and self.schema is not None:
            if self.disagreement is None or isinstance(self.schema, bool):
                return self.schema
            return {**self.schema, "$comment": self.note}
        members: list[JsonSchema] = []
        if self.schema is not None:
            members.append(self.schema)
        if self.document is not None:
            members.append(
                {"type": "string", "contentMediaType": "application/json", "contentSchema": self.document}
            )
        if self.text:
            members.append({"type": "string"})
        if self.result:
            members.append(MCP_RESULT_SCHEMA)
        whole = members[0] if len(members) == 1 else {"anyOf": members}
        if isinstance(whole, bool):
            return {"description": self.note} if whole else {"description": self.note, "not": True}
        return {"description": self.note, **whole}

    def as_json(self) -> dict[str, Any]:
        """Gives the provenance as JSON, for discovery and `cellblock inspect`."""
        data: dict[str, Any] = {"source": self.source, "note": self.note}
        if self.samples:
            data |= {
                "samples": self.samples,
                "firstSeen": self.first_seen,
                "lastSeen": self.last_seen,
                "version": self.version,
            }
        if self.disagreement is not None:
            data["disagreement"] = self.disagreement
        if self.sample is not None:
            data["sample"] = self.sample
        return data


OutputLookup = Callable[[ServerEntry, ToolEntry], ToolOutput | None]
"""Gives what is known of a tool's output at the moment."""

OutputsOf = Callable[[str], OutputLookup]
"""Gives what a principal looks outputs up with: what one alone has shown is shown to that one."""


def nothing_observed(_server: ServerEntry, _tool: ToolEntry) -> None:
    """Looks up observations where there are none."""


def stated_of(_principal: str) -> OutputLookup:
    """Gives what is stated, to everybody."""
    return stated_output


def stated_output(_server: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
    """Gives what is given or declared of a tool's output, and nothing that was observed: for text that must not change
    with use."""
    given = tool.given
    if given is not None and given.output_schema is not None:
        if given.json_text and not tool.parse_text:
            return ToolOutput("given", "Given by the user.", document=given.output_schema)
        return ToolOutput("given", "Given by the user.", schema=given.output_schema)
    if tool.output_schema is not None:
        return ToolOutput("declared", "Declared by the server.", schema=tool.output_schema)
    return None
