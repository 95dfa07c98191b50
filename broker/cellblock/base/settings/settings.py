"""The models of a whole configuration, without its file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from cellblock.base.json import is_object
from cellblock.base.settings.hosts import HostSettings
from cellblock.base.settings.older import in_new_form
from cellblock.base.settings.policy import PolicySettings
from cellblock.base.settings.problems import SECTION_KEY, Faults, Problem, nearest
from cellblock.base.settings.sections import (
    ALL,
    MIB,
    Audit,
    Dashboard,
    FrontendSettings,
    HttpSettings,
    HttpUrl,
    IsolationMode,
    LimitSettings,
    LogSettings,
    Metrics,
    Pins,
    PoolSettings,
    Profile,
    SchemaSettings,
    Section,
    UpstreamSettings,
)
from cellblock.base.settings.server import AuthSettings, ServerConfig
from cellblock.base.settings.state import Journal, JournalSettings, ScriptSettings, StateSettings
from cellblock.base.state_dir import default_state_dir

TypecheckMode = Literal["off", "after", "before"]


class RunSettings(Section):
    """Holds the part of the `"cellblock"` section that single runs go by."""

    limits: LimitSettings = LimitSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    frontend: FrontendSettings = FrontendSettings()
    policy: PolicySettings = PolicySettings()
    typecheck: TypecheckMode = "after"
    """Says when a script is checked against the known types of tools. `after` checks it beside its run, to warn.
    `before` checks it before it starts, and type errors refuse it. `off` starts no compiler. A request may choose its
    own value."""

    typecheck_timeout_ms: Annotated[int, Field(ge=1)] | None = None
    """Bounds how long a script that is checked `before` it starts waits for its check, or a response for the check
    beside the run, in milliseconds. Absent: 500, and 30 for a response behind checks of other scripts. Later findings
    come with the same client's next response."""

    max_message_bytes: Annotated[int, Field(ge=4096)] = 16 * MIB
    """Caps a tool input, a tool result and a script result, in bytes of JSON. Inputs of one run that wait for answers
    are decoded up to so many bytes at a time. Four times as many may wait; the broker does not make a call beyond
    that."""


class CellblockSettings(RunSettings):
    """Holds the `"cellblock"` section of a configuration."""

    pool: PoolSettings = PoolSettings()
    auth: AuthSettings = AuthSettings()
    http: HttpSettings = HttpSettings()
    hosts: HostSettings = HostSettings()
    log: LogSettings = LogSettings()
    schemas: SchemaSettings = SchemaSettings()
    journal: Journal = JournalSettings()
    state: StateSettings = StateSettings()
    scripts: ScriptSettings = ScriptSettings()

    pins: Pins = Field(default={ALL: "auto"})
    """Sets the reaction to tool definitions of a server that differ from those that were seen first, or approved last.
    `warn` keeps a changed tool usable and warns. `quarantine` leaves it out until it is approved, and also leaves out
    tools that are new since the first list; resources are not passed on then. `auto` warns of servers whose programs
    are on this machine; of those at a URL, in a container, or that `npx`, `uvx` or the like fetch, it leaves out tools
    as `quarantine` does. `off` keeps no pins. An object has a reaction for each server, by its name in `mcpServers`;
    `*` stands for all others."""

    metrics: Metrics = "token"
    """Says who may read `/metrics` of `serve --http`, in the text format of Prometheus. With `token` the page requires
    the bearer token, as everything else does. With `open` anyone who reaches the address can read the names of servers
    and tools, and how often they are called."""

    dashboard: Dashboard | None = None
    """Sets what the dashboard of `serve --http` shows. `off` is no dashboard. `runs` shows runs and
    calls, `logs` also the console output of scripts, and `scripts` also the scripts themselves, up to 20,000 characters
    each: anyone who may open the dashboard sees those of all clients. Absent: `logs`, or with `http.oauth` `off`,
    because everybody who may run scripts sees the runs of all."""

    audit: Audit = Field(default=[])
    """Says what is in `audit.jsonl` in the state directory, one JSON object a line: who ran what when, which tools were
    called, and what the list names: `inputs` are scripts and the inputs of tool calls, `outputs` results and the
    outputs of tool calls. There is an audit log with `serve --http`, which others may use; with `calls` in the list,
    also where the broker has one user. `off`: there is none."""

    traces: HttpUrl | None = None
    """Names a collector of OpenTelemetry for OTLP over HTTP, with its whole path, such as
    `http://127.0.0.1:4318/v1/traces`: it gets one span for each run, below it one for each tool call. Needs `pip
    install 'cellblock[otel]'`. Absent: no traces."""

    isolation: IsolationMode = "auto"
    """Says whether bubblewrap puts namespaces around each worker, and around the type checker's compiler. `auto` uses
    them where the machine offers them; `required` does not start without them. Both use cgroups where they can, one for
    each worker and one around all, but require none; without cgroups, a script's data is still capped. `off` uses
    neither namespaces nor cgroups."""

    state_dir: Path | None = None
    """Names the folder where logs and stores live; the platform's state directory when absent."""

    tools: list[str] = Field(default_factory=list[str])
    """Names the Python functions that become the server `local`: modules (`package.module`) with their `@tool()`
    functions, or single functions (`package.module:function`)."""

    @model_validator(mode="before")
    @classmethod
    def _of_older_files(cls, data: Any) -> Any:
        return in_new_form(data) if is_object(data) else data

    @property
    def dashboard_shows(self) -> Dashboard:
        """Returns what the dashboard shows."""
        if self.dashboard is not None:
            return self.dashboard
        return "logs" if self.http.oauth is None else "off"


class Settings(BaseModel):
    """Holds a whole configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: dict[str, ServerConfig] = Field(default_factory=dict[str, ServerConfig], alias="mcpServers")
    """Holds the MCP servers, by names of your choice."""

    cellblock: CellblockSettings = CellblockSettings()
    """Holds Cellblock's own settings."""

    _files: tuple[Path, ...] = PrivateAttr(default=())

    _warnings: tuple[str, ...] = PrivateAttr(default=())

    _file: str = PrivateAttr(default="")

    @property
    def file(self) -> str:
        """Returns the path of the configuration file; empty where the settings come from none."""
        return self._file

    @property
    def files(self) -> tuple[Path, ...]:
        """Returns the files that references such as `${file:/path}` have named."""
        return self._files

    @property
    def warnings(self) -> tuple[str, ...]:
        """Returns what is let pass, a sentence each, with its place: references that stand for nothing, for example."""
        return self._warnings

    def hold(self, files: Sequence[Path], warnings: Sequence[str] = (), file: Path | None = None) -> None:
        """Notes the files and the warnings of a configuration, and its own file; for who reads it."""
        self._file = "" if file is None else str(file.absolute())
        self._files = tuple(files)
        self._warnings = tuple(warnings)

    @model_validator(mode="after")
    def _exceptions_of_known_servers(self) -> Settings:
        section: Any = self.cellblock
        named: dict[tuple[str, ...], Any] = {path: reduce(getattr, path, section) for path in BY_SERVER}
        programs = {name for name, server in self.servers.items() if server.url is None}
        found = misplaced(named, self.servers, programs)
        knows = section.http.oauth is not None and section.http.oauth.client_id is not None
        for name, own in section.auth.servers.items():
            server = self.servers.get(name)
            if own.goes_by_identity and not (knows and server is not None and server.is_personal):
                path = (SECTION_KEY, "auth", "servers", name, "grant")
                hint = 'Set http.oauth.client_id, and `"login": "each"` in the server\'s entry.'
                found.append(Problem(path, f"{own.grant} needs to know who a person is", hint))
        if found:
            raise Faults(found)
        return self

    @property
    def state_dir(self) -> Path:
        """Returns the folder where everything that outlives a run is kept."""
        # Absolute: worker hosts are told of it, and do not run in this process's folder.
        return (self.cellblock.state_dir or default_state_dir()).absolute()

    @property
    def overlay_dir(self) -> Path:
        """Returns the folder of the user's overlay files."""
        return self.cellblock.schemas.overlays or self.state_dir / "overlays"

    @property
    def enabled(self) -> list[str]:
        """Returns the names of the servers that are not disabled."""
        return [name for name, server in self.servers.items() if not server.disabled]

    def with_state_dir(self, path: Path | None) -> Settings:
        """Returns the same settings with another state directory, or unchanged for None."""
        return self if path is None else self.with_section(state_dir=path)

    def for_service(self) -> Settings:
        """Returns the same settings with an audit log, unless they say otherwise: others use the daemon."""
        audit = self.cellblock.audit
        return self if audit == "off" or "calls" in audit else self.with_section(audit=["calls", *audit])

    def without_workers(self) -> Settings:
        """Returns the same settings for a process that runs no script: it starts no worker host and no compiler."""
        return self.with_section(hosts=HostSettings().model_copy(update={"local": False}), typecheck="off")

    def for_one_run(self) -> Settings:
        """Returns the same settings for a process that runs one script: it boots no others."""
        pool = self.cellblock.pool
        return self.with_section(pool=pool.model_copy(update={"warm": min(1, pool.warm)}))

    def with_profile(self, profile: Profile | None) -> Settings:
        """Returns the same settings with another front-end profile, or unchanged for None."""
        if profile is None:
            return self
        return self.with_section(frontend=self.cellblock.frontend.model_copy(update={"profile": profile}))

    def with_section(self, **changed: Any) -> Settings:
        """Returns the same settings with other values in the `cellblock` section, which are not validated."""
        return self.model_copy(update={"cellblock": self.cellblock.model_copy(update=changed)})


BY_SERVER: Final = (
    ("pins",),
    ("upstream", "connect_timeout_ms"),
    ("upstream", "call_timeout_ms"),
    ("upstream", "max_calls"),
    ("auth", "servers"),
    ("schemas", "learn"),
    ("schemas", "unwrap"),
)
"""Names the settings that may have a value for each server, by their keys in the section."""


def misplaced(
    named: Mapping[tuple[str, ...], Iterable[str]], servers: Collection[str], programs: Collection[str]
) -> list[Problem]:
    """Returns the problems of exceptions for servers: those that there are not, and logins to programs.

    Args:
        named: The servers that are named in each of `BY_SERVER`.
        servers: All servers.
        programs: Those without a URL.
    """
    found: list[Problem] = []
    for keys, names in named.items():
        known = [*servers, *(["local"] if keys[0] == "schemas" else [])]
        for name in names:
            path = (SECTION_KEY, *keys, name)
            if name not in known and name != ALL:
                near = nearest(name, known)
                hint = f"Did you mean {near}?" if near else f"There are: {', '.join(known) or 'none'}."
                found.append(Problem(path, "no such server in mcpServers", hint, at_key=True))
            elif keys[0] == "auth" and name in programs:
                hint = "Take it out: programs are given their secrets in env."
                found.append(Problem(path, "this server has no url to log in to", hint, at_key=True))
    return found
