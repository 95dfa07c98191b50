"""Says what of a configuration a front-end goes by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cellblock.config.schemas import SchemaSettings
from cellblock.config.sections import FrontendSettings, LimitSettings, OutputSettings


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Holds the sections for front-ends; the composition root makes one for each configuration in force.

    Attributes:
        state_dir: The folder of outputs, and of what clients have used.
        shown: What clients are shown.
        limits: What the manual says of runs.
        outputs: What becomes of large results.
        schemas: What the manual says of results.
        servers: Names of the servers that are not disabled.
        traced: Whether the trace context of clients is taken on.
    """

    state_dir: Path
    shown: FrontendSettings
    limits: LimitSettings
    outputs: OutputSettings
    schemas: SchemaSettings
    servers: tuple[str, ...]
    traced: bool
