"""Settings: a whole configuration, and how its file is read.

A configuration is the `mcpServers` JSON that MCP clients use, with Cellblock's own settings under a top-level
`"cellblock"` key, or the same as TOML.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cellblock.config_auth import AuthSettings, ServerAuthSettings
from cellblock.config_http import HttpSettings
from cellblock.config_policy import Grant, PolicySettings
from cellblock.config_schemas import (
    SchemaRules,
    SchemaSettings,
    ServerSchemaSettings,
    ToolSchemaSettings,
    Unwrap,
)
from cellblock.config_sections import (
    MIB,
    FrontendSettings,
    HostSettings,
    LimitRange,
    LimitSettings,
    PinSettings,
    PoolSettings,
    Positive,
    Profile,
    Reaction,
    Section,
    UpstreamSettings,
)
from cellblock.errors import ConfigError

__all__ = [
    "MIB",
    "AuthSettings",
    "CellblockSettings",
    "FrontendSettings",
    "Grant",
    "HostSettings",
    "HttpSettings",
    "LimitRange",
    "LimitSettings",
    "PinSettings",
    "PolicySettings",
    "PoolSettings",
    "Positive",
    "Profile",
    "Reaction",
    "SchemaRules",
    "SchemaSettings",
    "ServerAuthSettings",
    "ServerConfig",
    "ServerSchemaSettings",
    "Settings",
    "ToolSchemaSettings",
    "TypecheckMode",
    "Unwrap",
    "UpstreamSettings",
    "load_settings",
    "parse_settings",
]

TypecheckMode = Literal["off", "after", "before"]


class CellblockSettings(Section):
    """The `"cellblock"` section of a configuration."""

    limits: LimitSettings = LimitSettings()
    pool: PoolSettings = PoolSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    auth: AuthSettings = AuthSettings()
    pins: PinSettings = PinSettings()
    frontend: FrontendSettings = FrontendSettings()
    http: HttpSettings = HttpSettings()
    hosts: HostSettings = HostSettings()
    schemas: SchemaSettings = SchemaSettings()
    isolation: Literal["required", "auto", "off"] = "auto"
    """Namespaces around each worker by bubblewrap: `auto` uses them where the machine offers them, `required` does not
    start without. A cgroup around all workers together is used with both where there is one, and demanded by neither:
    what one worker may take is kept without it. `off` uses neither namespaces nor cgroup."""

    policy: PolicySettings = PolicySettings()
    typecheck: TypecheckMode = "after"
    """When a script is checked against what is known of tools: `after` it has failed, to say more; `before` it starts,
    and then type errors refuse it; `off` starts no compiler at all. A request may choose its own."""

    typecheck_timeout_ms: Positive = 500
    """Longest that a response waits for a type check, in milliseconds. A warm one takes 5 ms; `before` also waits for
    the compiler's own start."""

    max_code_bytes: Positive = MIB
    """Largest script, in UTF-8 bytes."""

    max_message_bytes: Annotated[int, Field(ge=4096)] = 16 * MIB
    """Largest tool input, tool result or script result, in bytes of JSON."""

    state_dir: Path | None = None
    """Where logs and stores live; the platform's state directory when absent."""

    tools: list[str] = Field(default_factory=list[str])
    """What becomes the server `local`: Python modules (`package.module`) with their `@tool()` functions, or single
    functions (`package.module:function`)."""


class ServerConfig(BaseModel):
    """One entry of `mcpServers`: a command to start, or a URL to connect to."""

    # Clients put keys of their own beside the standard ones; those are not ours to judge.
    model_config = ConfigDict(extra="ignore", frozen=True)

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: Path | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    type: Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"] | None = None
    disabled: bool = False

    @model_validator(mode="after")
    def _one_transport(self) -> ServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("exactly one of `command` and `url` is needed")
        return self


class Settings(BaseModel):
    """A whole configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: dict[str, ServerConfig] = Field(default_factory=dict[str, ServerConfig], alias="mcpServers")
    cellblock: CellblockSettings = CellblockSettings()

    @model_validator(mode="after")
    def _exceptions_of_known_servers(self) -> Settings:
        for name in self.cellblock.pins.servers:
            if name not in self.servers:
                raise ValueError(f"cellblock.pins.servers names {name!r}, which is not in mcpServers")
        for name in self.cellblock.upstream.servers:
            if name not in self.servers:
                raise ValueError(f"cellblock.upstream.servers names {name!r}, which is not in mcpServers")
        for name in self.cellblock.auth.servers:
            if name not in self.servers or self.servers[name].url is None:
                raise ValueError(
                    f"cellblock.auth.servers names {name!r}, which is no server with a url in mcpServers"
                )
        unknown = [
            name for name in self.cellblock.schemas.servers if name not in self.servers and name != "local"
        ]
        if unknown:
            known = ", ".join([*self.servers, "local"])
            raise ValueError(f"cellblock.schemas.servers.{unknown[0]}: no such server; there are {known}")
        return self

    @property
    def state_dir(self) -> Path:
        """Where everything that outlives a run is kept."""
        # Absolute: worker hosts are told of it, and do not run in this process's folder.
        return (self.cellblock.state_dir or Path(platformdirs.user_state_dir("cellblock"))).absolute()

    @property
    def overlay_dir(self) -> Path:
        """Where the user's overlay files are."""
        return self.cellblock.schemas.overlays or self.state_dir / "overlays"

    def with_state_dir(self, path: Path | None) -> Settings:
        """The same settings with another state directory, or unchanged for None."""
        if path is None:
            return self
        section = self.cellblock.model_copy(update={"state_dir": path})
        return self.model_copy(update={"cellblock": section})

    def with_profile(self, profile: Profile | None) -> Settings:
        """The same settings with another front-end profile, or unchanged for None."""
        if profile is None:
            return self
        frontend = self.cellblock.frontend.model_copy(update={"profile": profile})
        return self.model_copy(update={"cellblock": self.cellblock.model_copy(update={"frontend": frontend})})


def load_settings(path: str | os.PathLike[str] | None) -> Settings:
    """Reads a configuration file; None gives the defaults without servers.

    Raises:
        ConfigError: The file cannot be read or parsed, or says something that cannot be used.
    """
    if path is None:
        return Settings()
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the configuration {file}: {error}.", hint="Check --config.") from None
    try:
        raw: object = tomllib.loads(text) if file.suffix.lower() == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} is not valid: {error}.", hint="Correct the file at that position."
        ) from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} holds no object.", hint='Start with {"mcpServers": {…}}.')
    return parse_settings(cast("dict[str, Any]", raw), source=str(file))


def parse_settings(raw: Mapping[str, Any], *, source: str = "the configuration") -> Settings:
    """Makes Settings from a parsed configuration.

    Keys of clients beside `mcpServers` and `cellblock` are left alone.

    Raises:
        ConfigError: Something in it cannot be used; the message names the place.
    """
    known = {key: raw[key] for key in ("mcpServers", "cellblock") if key in raw}
    try:
        return Settings.model_validate(known)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top level"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ConfigError(
            f"{source}: {where}: {first['msg']}{more}.", hint=f"Correct {where} in the configuration."
        ) from None
