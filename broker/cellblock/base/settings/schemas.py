"""The section `schemas` says what is learnt of tool results, and how scripts get them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cellblock.base.settings.sections import ALL, Section, by_name, value_for

Unwrap = Literal["spec", "json"]


class SchemaSettings(Section):
    """Sets what Cellblock learns of tool results, and how scripts get them. In the place of a value of `learn` or
    `unwrap`, an object has one for each server, by its name in `mcpServers` (`local` for Python tools); `*` stands for
    all others."""

    learn: Annotated[
        dict[str, bool], BeforeValidator(by_name(True), json_schema_input_type=bool | dict[str, bool])
    ] = Field(default={ALL: True})
    """Says whether the shapes of results are observed and kept in the state directory. Values are not kept."""

    unwrap: Annotated[
        dict[str, Unwrap], BeforeValidator(by_name("spec"), json_schema_input_type=Unwrap | dict[str, Unwrap])
    ] = Field(default={ALL: "spec"})
    """Says how scripts get a result that is a single text block. `spec` gives it as it is (Code Mode specification,
    section 5.3.2). `json` parses it if it is a JSON object or array, and gives the value."""

    unbox: bool = False
    """Gives scripts the scalar or list that a server's SDK has wrapped as `{"result": …}` for structured content."""

    keep_samples: bool = False
    """Says whether the newest small result of each tool is kept, and shown as an example."""

    overlays: Path | None = None
    """Names the folder of the overlay files. Absent: `overlays` in the state directory."""

    def learns(self, server: str) -> bool:
        """Says whether the shapes of a server's results are observed."""
        return value_for(server, self.learn)

    def unwraps(self, server: str) -> bool:
        """Says whether scripts get the values of a server's texts that are JSON."""
        return value_for(server, self.unwrap) == "json"
