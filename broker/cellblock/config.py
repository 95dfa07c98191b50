"""Settings: every cap and bound with its unit, default and reason, and how a configuration file is read.

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

from cellblock.errors import ConfigError

MIB = 1024 * 1024

Positive = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitRange(_Section):
    """A per-run limit: what a run gets when it asks for nothing, and the most that it may ask for."""

    default: Annotated[int, Field(ge=0)]
    maximum: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _ordered(self) -> LimitRange:
        if self.default > self.maximum:
            raise ValueError(f"default {self.default} is over maximum {self.maximum}")
        return self


class LimitSettings(_Section):
    """The per-run limits (Code Mode specification, section 3.2.4)."""

    timeout_ms: LimitRange = LimitRange(default=60_000, maximum=600_000)
    """Wall time in milliseconds, from the moment a worker has the script."""

    max_cpu_ms: LimitRange = LimitRange(default=30_000, maximum=600_000)
    """CPU time of all the worker's threads in milliseconds; waiting for tools costs none."""

    max_memory_bytes: LimitRange = LimitRange(default=256 * MIB, maximum=256 * MIB)
    """Memory over an idle worker's, in bytes. The maximum also sizes V8's heap, so raising it makes V8
    collect garbage later in every run."""

    max_log_bytes: LimitRange = LimitRange(default=64 * 1024, maximum=4 * MIB)
    """Console output in UTF-8 bytes: it ends up in a model's context."""

    max_tool_calls: LimitRange = LimitRange(default=200, maximum=10_000)
    """Tool calls of one run."""


class PoolSettings(_Section):
    """Workers on this machine and the queue in front of them."""

    warm: Annotated[int, Field(ge=0, le=1024)] = 4
    """Workers kept booted and waiting; each costs about 8 MiB of private memory."""

    capacity: Annotated[int, Field(ge=1, le=1024)] = 16
    """Runs at the same time; more wait in the queue."""

    queue_size: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Runs that may wait; one more is refused at once."""

    queue_wait_ms: Positive = 30_000
    """Longest wait for a place, in milliseconds; then the run is refused."""

    total_memory_bytes: Annotated[int, Field(ge=256 * MIB)] | None = None
    """Memory of all workers and their host together, in bytes, kept by a cgroup where the machine offers one. When
    absent: capacity × `limits.max_memory_bytes.maximum`, 64 MiB for each worker beside, and 256 MiB."""


class UpstreamSettings(_Section):
    """Bounds of what upstream servers may take, in milliseconds and bytes."""

    connect_timeout_ms: Positive = 30_000
    """From starting a server to the end of its tool list; `npx` may download first."""

    call_timeout_ms: Positive = 30_000
    """One tool call. The SDK's client waits for ever when an answer cannot be parsed."""

    startup_wait_ms: Annotated[int, Field(ge=0)] = 10_000
    """How long the first run waits for servers that are still connecting."""

    retry_first_ms: Positive = 500
    retry_max_ms: Positive = 30_000
    """Pause before reconnecting, doubled from the first to the longest."""

    max_concurrent_calls: Positive = 32
    """Calls of one run that are with upstreams at the same time; more wait their turn."""

    max_tools: Positive = 2_000
    """Tools taken from one server; a paginator without end stops here."""


class FrontendSettings(_Section):
    """What clients are shown."""

    declaration_chars: Annotated[int, Field(ge=0)] = 16_000
    """Characters of TypeScript declarations in the tool's description: about 5,000 tokens of a model's context.
    Servers that do not fit are named with their functions; 0 names all."""


class CellblockSettings(_Section):
    """The `"cellblock"` section of a configuration."""

    limits: LimitSettings = LimitSettings()
    pool: PoolSettings = PoolSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    frontend: FrontendSettings = FrontendSettings()
    isolation: Literal["required", "auto", "off"] = "auto"
    """Namespaces around each worker by bubblewrap: `auto` uses them where the machine offers them, `required` does not
    start without. A cgroup around all workers together is used with both where there is one, and demanded by neither:
    what one worker may take is kept without it. `off` uses neither namespaces nor cgroup."""

    max_code_bytes: Positive = MIB
    """Largest script, in UTF-8 bytes."""

    max_message_bytes: Annotated[int, Field(ge=4096)] = 16 * MIB
    """Largest tool input, tool result or script result, in bytes of JSON."""

    state_dir: Path | None = None
    """Where logs and stores live; the platform's state directory when absent."""

    tools: list[str] = []
    """Python modules (`package.module`) whose `@tool()` functions become the server `local`."""


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

    @property
    def state_dir(self) -> Path:
        """Where everything that outlives a run is kept."""
        return self.cellblock.state_dir or Path(platformdirs.user_state_dir("cellblock"))

    def with_state_dir(self, path: Path | None) -> Settings:
        """The same settings with another state directory, or unchanged for None."""
        if path is None:
            return self
        section = self.cellblock.model_copy(update={"state_dir": path})
        return self.model_copy(update={"cellblock": section})


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
