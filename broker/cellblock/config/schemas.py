"""The section `schemas` says what is learnt of tool results, and how scripts get them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from cellblock.config.sections import Positive, Section

Unwrap = Literal["spec", "json"]


class ToolSchemaSettings(Section):
    """Sets what a server or a tool does otherwise; None is as the level above has it."""

    learn: bool | None = None
    """Overrides `schemas.learn`."""

    unwrap: Unwrap | None = None
    """Overrides `schemas.unwrap`."""

    unbox: bool | None = None
    """Overrides `schemas.unbox`."""

    keep_samples: bool | None = None
    """Overrides `schemas.keep_samples`."""


class ServerSchemaSettings(ToolSchemaSettings):
    """Sets what one server of `mcpServers` does otherwise, and its tools by their MCP names."""

    tools: dict[str, ToolSchemaSettings] = Field(default_factory=dict[str, ToolSchemaSettings])
    """Holds exceptions for single tools, by their MCP names."""


class SchemaRules(NamedTuple):
    """Tells which rules on schemas hold for one tool."""

    learn: bool
    unwrap: Unwrap
    unbox: bool
    keep_samples: bool


class SchemaSettings(Section):
    """Sets what Cellblock learns of tool results, and how scripts get them."""

    learn: bool = True
    """Says whether the shapes of results are observed and kept in the state directory. Values are not kept."""

    unwrap: Unwrap = "spec"
    """Says how scripts get a result that is a single text block. `spec` gives it as it is (Code Mode specification,
    section 5.3.2). `json` parses it if it is a JSON object or array, and gives the value."""

    unbox: bool = False
    """Gives scripts the scalar or list that a server's SDK has wrapped as `{"result": …}` for structured content."""

    keep_samples: bool = False
    """Says whether the newest small result of each tool is kept, and shown as an example."""

    stable_after: Positive = 20
    """Sets the number of results in a row that change nothing, after which Cellblock looks only at some. Each 8 KiB
    of a result count as one."""

    sample_every: Positive = 16
    """Sets that one result in so many is observed from then on."""

    overlays: Path | None = None
    """Names the folder of the overlay files. Absent: `overlays` in the state directory."""

    servers: dict[str, ServerSchemaSettings] = Field(default_factory=dict[str, ServerSchemaSettings])
    """Holds exceptions, by the server's name in `mcpServers` (`local` for Python tools)."""

    def for_tool(self, server: str, tool: str) -> SchemaRules:
        """Returns the rules that hold for a tool: as said for it, else for its server, else for all."""
        rules = SchemaRules(self.learn, self.unwrap, self.unbox, self.keep_samples)
        own = self.servers.get(server)
        if own is None:
            return rules
        for level in (own, own.tools.get(tool)):
            if level is not None:
                said = {name: value for name in rules._fields if (value := getattr(level, name)) is not None}
                rules = rules._replace(**said)
        return rules
