"""The section `schemas` says what is learnt of tool results, and how scripts get them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from cellblock.base.settings.sections import Section

Unwrap = Literal["spec", "json"]


class ServerSchemaSettings(Section):
    """Sets what one server of `mcpServers` does otherwise; None is as for all."""

    learn: bool | None = None
    """Overrides `schemas.learn`."""

    unwrap: Unwrap | None = None
    """Overrides `schemas.unwrap`."""

    unbox: bool | None = None
    """Overrides `schemas.unbox`."""

    keep_samples: bool | None = None
    """Overrides `schemas.keep_samples`."""


class SchemaRules(NamedTuple):
    """Tells which rules on schemas hold for a server's tools."""

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

    overlays: Path | None = None
    """Names the folder of the overlay files. Absent: `overlays` in the state directory."""

    servers: dict[str, ServerSchemaSettings] = Field(default_factory=dict[str, ServerSchemaSettings])
    """Holds exceptions, by the server's name in `mcpServers` (`local` for Python tools)."""

    def for_server(self, server: str) -> SchemaRules:
        """Returns the rules that hold for the tools of a server: as said for it, else for all."""
        rules = SchemaRules(self.learn, self.unwrap, self.unbox, self.keep_samples)
        if (own := self.servers.get(server)) is None:
            return rules
        return rules._replace(**own.model_dump(exclude_none=True))
