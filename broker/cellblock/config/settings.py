"""Settings are a whole configuration; its file is read here.

A configuration is the `mcpServers` JSON that MCP clients use, with Cellblock's own settings under a top-level
`"cellblock"` key, or the same as TOML.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.config.auth import AuthSettings
from cellblock.config.client_permissions import ClientPermissions, client_of
from cellblock.config.file.entry_keys import entry_problems, places_of_slipped_transports
from cellblock.config.file.formats import PROJECTS_KEY, SECTION_KEY, SERVERS_KEY, Normal, normal, value_at
from cellblock.config.file.plain_state_dir import default_state_dir
from cellblock.config.file.problems import ConfigProblems, Faults, Problem, Source, nearest, of_validation
from cellblock.config.file.references import Resolver
from cellblock.config.file.syntax import TOML_SUFFIX, SyntaxFault, parse
from cellblock.config.hosts import HostSettings
from cellblock.config.http import HttpSettings
from cellblock.config.journal import Journal, JournalSettings
from cellblock.config.observe import (
    AuditSettings,
    DashboardSettings,
    LogSettings,
    MetricsSettings,
    TraceSettings,
)
from cellblock.config.policy import PolicySettings
from cellblock.config.schemas import SchemaSettings
from cellblock.config.sections import (
    MIB,
    FrontendSettings,
    Isolation,
    IsolationSettings,
    LimitSettings,
    OutputSettings,
    PinSettings,
    PoolSettings,
    Profile,
    Section,
    UpstreamSettings,
)
from cellblock.config.server import SERVER_KEYS, ServerConfig
from cellblock.config.state import StateSettings

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
    beside the run, in milliseconds. Absent: 500 and 30. Later findings come with the same client's next response."""

    max_message_bytes: Annotated[int, Field(ge=4096)] = 16 * MIB
    """Caps a tool input, a tool result and a script result, in bytes of JSON. Inputs of one run that wait for answers
    are decoded up to so many bytes at a time. Four times as many may wait; the broker does not make a call beyond
    that."""


class CellblockSettings(RunSettings):
    """Holds the `"cellblock"` section of a configuration."""

    pool: PoolSettings = PoolSettings()
    auth: AuthSettings = AuthSettings()
    pins: PinSettings = PinSettings()
    http: HttpSettings = HttpSettings()
    outputs: OutputSettings = OutputSettings()
    hosts: HostSettings = HostSettings()
    log: LogSettings = LogSettings()
    audit: AuditSettings = AuditSettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TraceSettings = TraceSettings()
    dashboard: DashboardSettings = DashboardSettings()
    schemas: SchemaSettings = SchemaSettings()
    isolation: Isolation = IsolationSettings()
    journal: Journal = JournalSettings()
    state: StateSettings = StateSettings()

    state_dir: Path | None = None
    """Names the folder where logs and stores live; the platform's state directory when absent."""

    ignored_server_keys: list[str] = Field(default_factory=list[str])
    """Lists keys that another program reads in the entries of servers, in addition to keys that are known to be other
    clients'."""

    tools: list[str] = Field(default_factory=list[str])
    """Names the Python functions that become the server `local`: modules (`package.module`) with their `@tool()`
    functions, or single functions (`package.module:function`)."""


class Settings(BaseModel):
    """Holds a whole configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: dict[str, ServerConfig] = Field(default_factory=dict[str, ServerConfig], alias="mcpServers")
    """Holds the MCP servers, by names of your choice."""

    cellblock: CellblockSettings = CellblockSettings()
    """Holds Cellblock's own settings."""

    _files: tuple[Path, ...] = PrivateAttr(default=())

    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @property
    def files(self) -> tuple[Path, ...]:
        """Returns the files that references such as `${file:/path}` have named."""
        return self._files

    @property
    def warnings(self) -> tuple[str, ...]:
        """Returns what is let pass, a sentence each, with its place: references that stand for nothing, for example."""
        return self._warnings

    def hold(self, files: Sequence[Path], warnings: Sequence[str] = ()) -> None:
        """Notes the files and the warnings of a configuration; for who reads it."""
        self._files = tuple(files)
        self._warnings = tuple(warnings)

    @model_validator(mode="after")
    def _exceptions_of_known_servers(self) -> Settings:
        named = {part: getattr(self.cellblock, part).servers for part in PARTS_BY_SERVER}
        programs = {name for name, server in self.servers.items() if server.url is None}
        if found := _misplaced(named, self.servers, programs):
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

    def with_state_dir(self, path: Path | None) -> Settings:
        """Returns the same settings with another state directory, or unchanged for None."""
        return self if path is None else self._with(state_dir=path)

    def for_service(self) -> Settings:
        """Returns the same settings with an audit log, unless they say otherwise: others use the daemon."""
        if self.cellblock.audit.enabled is not None:
            return self
        return self._with(audit=self.cellblock.audit.model_copy(update={"enabled": True}))

    def without_workers(self) -> Settings:
        """Returns the same settings for a process that runs no script: it starts no worker host and no compiler."""
        return self._with(hosts=HostSettings().model_copy(update={"local": False}), typecheck="off")

    def for_one_run(self) -> Settings:
        """Returns the same settings for a process that runs one script: it boots no others."""
        section = self.cellblock
        warm = min(1, section.pool.warm)
        pool = section.pool.model_copy(update={"warm": warm, "idle_warm": warm})
        return self._with(pool=pool)

    def with_profile(self, profile: Profile | None) -> Settings:
        """Returns the same settings with another front-end profile, or unchanged for None."""
        if profile is None:
            return self
        return self._with(frontend=self.cellblock.frontend.model_copy(update={"profile": profile}))

    def _with(self, **changed: Any) -> Settings:
        return self.model_copy(update={"cellblock": self.cellblock.model_copy(update=changed)})


PARTS_BY_SERVER: Final = ("pins", "upstream", "auth", "schemas")
"""Names the parts of the section that have exceptions for single servers, under `servers`."""


def _misplaced(
    named: Mapping[str, Iterable[str]], servers: Collection[str], programs: Collection[str]
) -> list[Problem]:
    """Returns the problems of exceptions for servers: those that there are not, and logins to programs.

    Args:
        named: The servers that are named in a part of the section, by its key.
        servers: All servers.
        programs: Those without a URL.
    """
    found: list[Problem] = []
    for part, names in named.items():
        known = [*servers, *(["local"] if part == "schemas" else [])]
        for name in names:
            path = (SECTION_KEY, part, "servers", name)
            if name not in known:
                near = nearest(name, known)
                hint = f"Did you mean {near}?" if near else f"There are: {', '.join(known) or 'none'}."
                found.append(Problem(path, "no such server in mcpServers", hint, at_key=True))
            elif part == "auth" and name in programs:
                hint = "Take it out: programs are given their secrets in env."
                found.append(Problem(path, "this server has no url to log in to", hint, at_key=True))
    return found


def _misplaced_in(plain: Mapping[str, Any]) -> list[Problem]:
    """Returns the problems of exceptions for servers in data that are no settings: pydantic looks at the whole only
    when every part is sound."""
    servers = plain.get(SERVERS_KEY, {})
    if not is_object(servers):
        return []
    named = {
        part: exceptions
        for part in PARTS_BY_SERVER
        if is_object(exceptions := value_at(plain, (SECTION_KEY, part, "servers")))
    }
    programs = {name for name, entry in servers.items() if is_object(entry) and "command" in entry}
    return _misplaced(named, servers, programs)


FIRST_LINE: Final = 'Start with {"mcpServers": {…}}.'


def load_settings(path: str | os.PathLike[str] | None) -> Settings:
    """Reads a configuration file; None gives the defaults without servers. `Settings.warnings` has what is let pass.

    Raises:
        ConfigError: The file cannot be read.
        ConfigProblems: It is not valid, or says something that cannot be used; with all places, as file:line:column.
    """
    if path is None:
        return Settings()
    source = read_source(path)
    return _settings(parse_source(source), source)


def parse_settings(raw: Mapping[str, Any], *, source: str = "the configuration") -> Settings:
    """Makes Settings from a parsed configuration.

    Keys of clients beside `mcpServers` and `cellblock` are left alone.

    Raises:
        ConfigProblems: Something in it cannot be used; the message names every place.
    """
    return _settings(raw, Source(source))


def read_source(path: str | os.PathLike[str]) -> Source:
    """Returns the text of a configuration file.

    Raises:
        ConfigError: It cannot be read.
    """
    file = Path(path)
    try:
        # Some editors on Windows begin a file with a byte order mark.
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is no UTF-8 text"
        raise ConfigError(f"Cannot read the configuration {file}: {why}.", hint="Check --config.") from None
    return Source(str(file), text, toml=file.suffix.lower() == TOML_SUFFIX)


def parse_source(source: Source) -> dict[str, Any]:
    """Returns the object that a configuration's text says.

    Raises:
        ConfigProblems: It is not valid, or no object.
    """
    try:
        raw: object = parse(source.text or "", toml=source.toml)
    except SyntaxFault as error:
        kind = "TOML" if source.toml else "JSON"
        fault = Problem((), f"not valid {kind}: {error.message}", "Correct the file there.")
        if not (source.text or "").strip():
            fault = replace(fault, message="the file is empty", hint=FIRST_LINE)
        raise ConfigProblems(source.name, [replace(fault, position=error.position)]) from None
    if not is_object(raw):
        fault = Problem((), "the file holds no object", FIRST_LINE)
        raise ConfigProblems(source.name, source.placed([fault]))
    return raw


def read_settings(
    raw: Mapping[str, Any], source: Source, environment: Mapping[str, str] | None = None
) -> tuple[Settings | None, list[Problem], Normal]:
    """Returns settings (None when there are errors), all problems with their positions, and the file in our own format.

    A reference that stands for nothing here is a warning in a server's entry, which is then not started, and an error
    in the `cellblock` section, where it may be a restriction. Variables are `environment`'s; None: this process's.
    """
    made = as_normal(raw)
    file = Path(source.name) if source.text is not None else None
    permissions = _with_permissions(made, file)
    variables = os.environ if environment is None else environment
    resolver = Resolver(file, made.inputs, variables)
    plain, secrets, missing = _resolved(made, resolver)
    settings, problems = validated(plain, made, resolver.problems)
    failed = any(problem.severity == "error" for problem in problems)
    for lacks in missing.values():
        problems += [replace(problem, path=made.path_in_file(problem.path)) for problem, _ in lacks]
    problems = source.placed(problems)
    if settings is None or failed:
        return None, problems, made
    for name, values in secrets.items():
        whys = dict.fromkeys(why for _, why in missing.get(name, ()))
        settings.servers[name].hold(values, "; ".join(whys) or None)
    warnings = [f"{problem.text(source.name)} {problem.hint}" for problem in problems]
    settings.hold([*resolver.files, *permissions], warnings)
    return settings, problems, made


def _with_permissions(made: Normal, file: Path | None) -> list[Path]:
    """Adds to the servers of a client's own file what that client's permission files come to.

    Returns:
        The files that were looked for.
    """
    found = None if file is None else client_of(file.absolute())
    if found is None:
        return []
    client, project = found
    permissions = ClientPermissions(client, project or Path.cwd())
    for name, entry in made.entries().items():
        origin = made.origins[name]
        of_project = project is not None or origin[0] == PROJECTS_KEY
        one = permissions.restricted(name, entry, of_project=of_project)
        made.entries()[name] = one.entry
        if one.told:
            message = f"by the client's own settings it is {', '.join(one.told)}"
            hint = "Take the rule out there, or add the server to a file of your own."
            made.problems.append(Problem(origin, message, hint, "warning", at_key=True))
    return permissions.files


def as_normal(raw: Mapping[str, Any]) -> Normal:
    """Returns a parsed file in our own format."""
    # Claude Code keeps servers of single projects in its own file, and takes those of the folder it is started in.
    return normal(raw, project=Path.cwd() if PROJECTS_KEY in raw else None)


def validated(
    plain: Mapping[str, Any], made: Normal, unresolved: Sequence[Problem] | None = None
) -> tuple[Settings | None, list[Problem]]:
    """Returns the settings that plain data say, if they can be used, and what is wrong with the file.

    Args:
        plain: The data of `made`.
        made: The file.
        unresolved: The problems of references; None: none is resolved, and one that stands in `plain` may be anything.
    """
    problems = [*made.problems]
    problems += [replace(problem, path=made.path_in_file(problem.path)) for problem in unresolved or ()]
    problems += entry_problems(made, SERVER_KEYS)
    try:
        return Settings.model_validate(plain), problems
    except ValidationError as error:
        # A reference that stands for nothing is no valid URL either, and `comand` no command; once is enough.
        reported = {problem.path for problem in problems} | places_of_slipped_transports(made, SERVER_KEYS)
        for problem in dict.fromkeys([*of_validation(error, Settings), *_misplaced_in(plain)]):
            value = value_at(plain, problem.path) if unresolved is None else None
            path = made.path_in_file(problem.path)
            if path not in reported and not (isinstance(value, str) and "${" in value):
                problems.append(replace(problem, path=path))
        return None, problems


_Missing = dict[str, list[tuple[Problem, str]]]
"""Maps servers to the references in their entries that stand for nothing, each with why."""


def _resolved(made: Normal, resolver: Resolver) -> tuple[dict[str, Any], dict[str, frozenset[str]], _Missing]:
    """Returns the configuration with references resolved, the secrets that each server was given by them, and what is
    missing."""
    plain = made.as_settings()
    secrets: dict[str, frozenset[str]] = {}
    missing: _Missing = {}
    if SECTION_KEY in plain:
        plain[SECTION_KEY] = resolver.resolve(plain[SECTION_KEY], (SECTION_KEY,))
        # What restricts must not be left out because a variable is not there.
        resolver.problems = resolver.faults
    servers = plain.get(SERVERS_KEY)
    if not is_object(servers):
        return plain, secrets, missing
    resolved: dict[str, Any] = {}
    for name, entry in servers.items():
        resolved[name] = entry
        if is_object(entry) and entry.get("disabled") is not True:
            before, resolver.secrets, resolver.missing = resolver.secrets, set(), []
            # What other clients keep there is not ours to look up.
            ours = {key: value for key, value in entry.items() if key in SERVER_KEYS}
            resolved[name] = resolver.resolve(ours, (SERVERS_KEY, name))
            if isinstance(file := resolved[name].get("envFile"), str) and "${" not in file:
                given = resolved[name].get("env", {})
                if is_object(given):
                    variables = resolver.variables(file, (SERVERS_KEY, name, "envFile"))
                    resolved[name]["env"] = variables | given
            secrets[name] = frozenset(resolver.secrets)
            resolver.secrets |= before
            if resolver.missing:
                until = f"Until then the server {name} is not started."
                missing[name] = [
                    (replace(problem, hint=f"{problem.hint} {until}", severity="warning"), why)
                    for problem, why in resolver.missing
                ]
                # `type` and `disabled` are no texts; what is not started needs neither.
                lacking = {problem.path[2] for problem, _ in resolver.missing}
                for key in lacking - {"command", "url"}:
                    del resolved[name][key]
                if any(str(key).endswith(("Tools", "Approve")) for key in lacking):
                    resolved[name]["disabledTools"] = ["*"]
    plain[SERVERS_KEY] = resolved
    return plain, secrets, missing


def _settings(raw: Mapping[str, Any], source: Source) -> Settings:
    settings, problems, _ = read_settings(raw, source)
    if settings is None:
        raise ConfigProblems(source.name, [problem for problem in problems if problem.severity == "error"])
    return settings
