"""Requests that are no tool calls stand in a tool's place for policy, budgets, audit log and whoever watches calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cellblock.tools.catalog.model import ToolEntry

Kind = Literal["resources", "resourceTemplates", "prompts"]
"""Names what a server lists beside tools, as the results of MCP's lists do."""

CAPABILITIES: Final[Mapping[Kind, str]] = {
    "resources": "resources",
    "resourceTemplates": "resources",
    "prompts": "prompts",
}


@dataclass(frozen=True, slots=True)
class RequestEntry(ToolEntry):
    """A request entry is called by its method: no tool can be one, whatever its name is.

    The result of one that is called `by_script` comes as the bytes that its server sent.
    """

    by_script: bool = False


READ: Final = RequestEntry(
    "resources/read",
    "resources/read",
    annotations={"readOnlyHint": True},
    input_schema={"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
)
SUBSCRIBE: Final = RequestEntry("resources/subscribe", "resources/subscribe")
GET_PROMPT: Final = RequestEntry("prompts/get", "prompts/get")
COMPLETE: Final = RequestEntry("completion/complete", "completion/complete")

REQUESTS: Final = (READ, SUBSCRIBE, GET_PROMPT, COMPLETE)
