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
from typing import Annotated, Any, Literal, NamedTuple, cast

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cellblock.config_http import HttpSettings
from cellblock.errors import ConfigError
from cellblock_worker.endpoints import EndpointError, check_tcp

MIB = 1024 * 1024

Positive = Annotated[int, Field(ge=1)]

TypecheckMode = Literal["off", "after", "before"]


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

    client_queue_size: Annotated[int, Field(ge=0, le=100_000)] = 128
    """Runs of one client that may wait: half of the queue, so that a client that fills its share leaves room."""

    reserved_places: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Places that only a client without a running run may take, so that one client's long runs cannot keep all others
    out; absent: one in sixteen of all places."""

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
    """One tool call, of an upstream or of a Python tool. The SDK's client waits for ever when an answer cannot be
    parsed."""

    startup_wait_ms: Annotated[int, Field(ge=0)] = 10_000
    """How long the first run waits for servers that are still connecting."""

    retry_first_ms: Positive = 500
    retry_max_ms: Positive = 30_000
    """Pause before reconnecting, doubled from the first to the longest."""

    max_concurrent_calls: Positive = 32
    """Calls of one run that are with upstreams at the same time; more wait their turn."""

    max_message_bytes: Annotated[int, Field(ge=4096)] = 32 * MIB
    """One message of a server, in bytes: twice the largest result, since servers send one as structured content and
    as text. A larger one is thrown away while it is read, and the call that it answers fails."""

    list_timeout_ms: Positive = 20_000
    """All pages of one tool list; what was read by then is kept."""

    max_pages: Positive = 500
    """Pages of one tool list: cursors without end stop here."""

    tool_threads: Annotated[int, Field(ge=1, le=1024)] = 32
    """Python tools that are not async and run at the same time, over all runs; each is a thread of the broker. One
    that never returns keeps its thread."""

    max_tools: Positive = 2_000
    """Tools taken from one server; a paginator without end stops here."""

    max_tool_bytes: Positive = 128 * 1024
    """One tool's definition as JSON; the largest seen in public servers is about 30 KiB."""

    max_definition_bytes: Positive = 8 * MIB
    """All definitions of one server together, as JSON: they stay in memory and in the pin file."""

    max_tool_depth: Annotated[int, Field(ge=1, le=150)] = 100
    """Nesting of one definition's JSON. The JSON parser of the SDK refuses a message at 200; real schemas stay
    under 30."""

    max_tool_values: Positive = 10_000
    """JSON values in one definition; a schema with more would not be checked either."""

    max_name_chars: Positive = 256
    """A tool's name; MCP advises 128. Every run's modules hold it."""

    max_description_chars: Positive = 32 * 1024
    """A tool's title or description, and a server's instructions: about 8,000 tokens of a model's context."""


Reaction = Literal["off", "warn", "quarantine"]
"""To a tool that is not as pinned: none and no pins; usable with a warning; left out until it is approved."""


class PinSettings(_Section):
    """What happens when a server's tool definitions are not those that were seen first, or approved last."""

    reaction: Reaction = "warn"
    """For every server. `quarantine` also leaves out tools that are new since the first list."""

    servers: dict[str, Reaction] = {}
    """Another reaction for single servers, by their names in `mcpServers`."""

    def of(self, server: str) -> Reaction:
        """The reaction for one server."""
        return self.servers.get(server, self.reaction)


class FrontendSettings(_Section):
    """What clients are shown."""

    declaration_chars: Annotated[int, Field(ge=0)] = 16_000
    """Characters of TypeScript declarations in the tool's description: about 5,000 tokens of a model's context.
    Servers that do not fit are named with their functions; 0 names all."""


class HostSettings(_Section):
    """Where scripts run: in a worker host on this machine, in hosts on others that connect over TCP, or in both."""

    local: bool = True
    """Whether a worker host is started on this machine."""

    listen: str | None = None
    """`tcp://ADDRESS:PORT` that hosts on other machines connect to; nothing listens when absent."""

    key: Path | None = None
    """File of the broker's key pair, made by `cellblock keygen`; needed to listen."""

    allowed_keys: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = {}
    """Public keys of the hosts that may connect, each under a name of your choice; needed to listen."""

    @model_validator(mode="after")
    def _only_with_keys(self) -> HostSettings:
        if self.listen is None:
            if self.key is not None or self.allowed_keys:
                raise ValueError("`key` and `allowed_keys` are of use only with `listen`")
            if not self.local:
                raise ValueError("`local` is false and there is no `listen`: no script could run")
            return self
        try:
            check_tcp(self.listen)
        except EndpointError as error:
            raise ValueError(f"`listen`: {error}") from None
        if self.key is None:
            raise ValueError("`listen` needs `key`: make one with `cellblock keygen FILE`")
        if not self.allowed_keys:
            raise ValueError("`listen` needs `allowed_keys`: the public key of each host, by a name")
        return self


Unwrap = Literal["spec", "json"]


class ToolSchemaSettings(_Section):
    """What a server or a tool does otherwise; None is as the level above has it."""

    learn: bool | None = None
    unwrap: Unwrap | None = None
    unbox: bool | None = None
    keep_samples: bool | None = None


class ServerSchemaSettings(ToolSchemaSettings):
    """The same for one server of `mcpServers`, and for its tools by their MCP names."""

    tools: dict[str, ToolSchemaSettings] = {}


class SchemaRules(NamedTuple):
    """What holds for one tool."""

    learn: bool
    unwrap: Unwrap
    unbox: bool
    keep_samples: bool


class SchemaSettings(_Section):
    """What is learnt of tool results, and how scripts get them."""

    learn: bool = True
    """Whether the shapes of results are observed and kept in the state directory. Values are not kept."""

    unwrap: Unwrap = "spec"
    """`spec` gives scripts a single text block as it is (Code Mode specification, section 5.3.2). `json` gives them
    what the text says when it is a JSON object or array."""

    unbox: bool = False
    """Gives scripts the scalar or list that a server's SDK has wrapped as `{"result": …}` to be structured content."""

    keep_samples: bool = False
    """Whether the newest small result of each tool is kept, and shown as an example."""

    stable_after: Positive = 20
    """Results in a row that change nothing, after which only some are looked at; each 8 KiB of one count as one."""

    sample_every: Positive = 16
    """Then one result in so many is."""

    overlays: Path | None = None
    """Folder of the overlay files; `overlays` in the state directory when absent."""

    servers: dict[str, ServerSchemaSettings] = {}
    """Exceptions, by the server's name in `mcpServers` (`local` for Python tools)."""

    def of(self, server: str, tool: str) -> SchemaRules:
        """What holds for a tool: as said for it, else for its server, else for all."""
        rules = SchemaRules(self.learn, self.unwrap, self.unbox, self.keep_samples)
        own = self.servers.get(server)
        for level in (own, own.tools.get(tool) if own is not None else None):
            if level is not None:
                said = {name: value for name in rules._fields if (value := getattr(level, name)) is not None}
                rules = rules._replace(**said)
        return rules


class CellblockSettings(_Section):
    """The `"cellblock"` section of a configuration."""

    limits: LimitSettings = LimitSettings()
    pool: PoolSettings = PoolSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    pins: PinSettings = PinSettings()
    frontend: FrontendSettings = FrontendSettings()
    http: HttpSettings = HttpSettings()
    hosts: HostSettings = HostSettings()
    schemas: SchemaSettings = SchemaSettings()
    isolation: Literal["required", "auto", "off"] = "auto"
    """Namespaces around each worker by bubblewrap: `auto` uses them where the machine offers them, `required` does not
    start without. A cgroup around all workers together is used with both where there is one, and demanded by neither:
    what one worker may take is kept without it. `off` uses neither namespaces nor cgroup."""

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

    tools: list[str] = []
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
        return self.cellblock.state_dir or Path(platformdirs.user_state_dir("cellblock"))

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
