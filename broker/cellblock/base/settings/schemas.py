"""The section `schemas` says what is learnt of tool results, and how scripts get them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from cellblock.base.settings.sections import Section

Unwrap = Literal["spec", "json"]


class ServerSchemaSettings(Section):
    """Sets what one server of `mcpServers` does otherwise; None is as for all."""

    learn: bool | None = None
    """Overrides `schemas.learn`."""

    unwrap: Unwrap | None = None
    """Overrides `schemas.unwrap`."""


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

    def learns(self, server: str) -> bool:
        """Says whether the shapes of a server's results are observed."""
        own = self.servers.get(server)
        return self.learn if own is None or own.learn is None else own.learn

    def unwraps(self, server: str) -> bool:
        """Says whether scripts get the values of a server's texts that are JSON."""
        own = self.servers.get(server)
        return ((own and own.unwrap) or self.unwrap) == "json"
