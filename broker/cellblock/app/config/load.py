"""Reads a configuration: the `mcpServers` JSON that MCP clients use, with Cellblock's own settings under a top-level
`"cellblock"` key, or the same as TOML; and says what of a changed one a running daemon can apply, and what waits for a
restart."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from cellblock.app.config.client_permissions import ClientPermissions, client_of
from cellblock.app.config.formats import (
    PROJECTS_KEY,
    SERVERS_KEY,
    Normal,
    entry_problems,
    normal,
    places_of_slipped_transports,
    value_at,
)
from cellblock.app.config.references import Resolver, origin_of, translated
from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object, mapped
from cellblock.base.settings.older import in_new_form
from cellblock.base.settings.problems import SECTION_KEY, ConfigProblems, Problem, Source, of_validation
from cellblock.base.settings.sections import ALL
from cellblock.base.settings.server import SERVER_KEYS
from cellblock.base.settings.settings import BY_SERVER, Settings, misplaced
from cellblock.base.settings.syntax import TOML_SUFFIX, SyntaxFault, parse

if TYPE_CHECKING:
    from cellblock.tools.upstream.registry import Change

LIVE: Final = (
    "frontend.declaration_chars",
    "journal",
    "limits.max_cpu_ms",
    "limits.max_log_bytes",
    "limits.max_tool_calls",
    "limits.timeout_ms",
    "pins",
    "policy",
    "typecheck_timeout_ms",
    "upstream.list_wait_ms",
)
"""Names settings of the `cellblock` section that runs after the change go by. All others are of parts that are built
once: workers, sockets, stores, front-ends."""

Model = TypeVar("Model", bound=BaseModel)


def _misplaced_in(plain: Mapping[str, Any]) -> list[Problem]:
    """Returns the problems of exceptions for servers in data that are no settings: pydantic looks at the whole only
    when every part is sound."""
    servers, section = plain.get(SERVERS_KEY, {}), plain.get(SECTION_KEY, {})
    if not is_object(servers) or not is_object(section):
        return []
    section = in_new_form(section)
    named = {keys: names for keys in BY_SERVER if is_object(names := value_at(section, keys))}
    programs = {name for name, entry in servers.items() if is_object(entry) and "command" in entry}
    return misplaced(named, servers, programs)


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


def state_dir_in(path: str | os.PathLike[str]) -> Path:
    """Returns the state directory that a configuration file names, whatever else is wrong in it, or the default.

    Raises:
        ConfigError: The file cannot be read.
        ConfigProblems: It is not valid, or names none that can be used.
    """
    source, key = read_source(path), (SECTION_KEY, "state_dir")
    resolver = Resolver(Path(path))
    given = resolver.resolve(value_at(parse_source(source), key), key)
    problems = resolver.faults
    if not problems:
        data = {SECTION_KEY: {"state_dir": given}}
        try:
            return Settings.model_validate(data).state_dir
        except ValidationError as error:
            problems = of_validation(error, Settings, data)
    raise ConfigProblems(source.name, source.placed(problems))


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
        return Source(
            str(file), file.read_text(encoding="utf-8-sig"), toml=file.suffix.lower() == TOML_SUFFIX
        )
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is no UTF-8 text"
        raise ConfigError(f"Cannot read the configuration {file}: {why}.", hint="Check its path.") from None


def parse_source(source: Source) -> dict[str, Any]:
    """Returns the object that a configuration's text says.

    Raises:
        ConfigProblems: It is not valid, or no object.
    """
    try:
        raw: object = parse(source.text or "", toml=source.toml)
    except SyntaxFault as error:
        message, hint = "the file is empty", FIRST_LINE
        if (source.text or "").strip():
            message = f"not valid {'TOML' if source.toml else 'JSON'}: {error.message}"
            hint = "Correct the file there."
        raise ConfigProblems(source.name, [Problem((), message, hint, position=error.position)]) from None
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
    # Claude Code keeps servers of single projects in its own file, and takes those of the folder it is started in.
    made = normal(raw, project=Path.cwd() if PROJECTS_KEY in raw else None)
    file = Path(source.name) if source.text is not None else None
    permissions = _with_permissions(made, file)
    resolver = Resolver(file, made.inputs, os.environ if environment is None else environment)
    plain, secrets, missing = _resolved(made, resolver)
    settings, problems = _validated(plain, made, resolver.problems)
    for lacks in missing.values():
        problems += [replace(problem, path=made.path_in_file(problem.path)) for problem, _ in lacks]
    problems = source.placed(problems)
    if settings is None or any(problem.severity == "error" for problem in problems):
        return None, problems, made
    for name, values in secrets.items():
        whys = dict.fromkeys(why for _, why in missing.get(name, ()))
        settings.servers[name].hold(values, "; ".join(whys) or None)
    scripts = settings.cellblock.scripts
    if file is not None and scripts.dir is not None:
        place = file.absolute().parent / scripts.dir.expanduser()
        settings = settings.with_section(scripts=scripts.model_copy(update={"dir": place}))
    warnings = [f"{problem.text(source.name)} {problem.hint}" for problem in problems]
    settings.hold([*resolver.files, *permissions], warnings, file)
    return settings, problems, made


def _with_permissions(made: Normal, file: Path | None) -> list[Path]:
    """Reads the servers of a client's own file as that client does, with what its permission files come to.

    Returns:
        The files that were looked for.
    """
    if file is None or (found := client_of(file.absolute())) is None:
        return []
    client, project = found
    permissions = ClientPermissions(client, project or Path.cwd())
    for name, entry in made.entries().items():
        entry = mapped(entry, partial(translated, client, file=file))
        origin = made.origins[name]
        made.entries()[name], told = permissions.restricted(
            name, entry, of_project=project is not None or origin[0] == PROJECTS_KEY
        )
        if told:
            made.problems.append(
                Problem(
                    origin,
                    f"by the client's own settings it is {', '.join(told)}",
                    "Take the rule out there, or add the server to a file of your own.",
                    "warning",
                    at_key=True,
                )
            )
    return permissions.files


def _validated(
    plain: Mapping[str, Any], made: Normal, unresolved: Sequence[Problem]
) -> tuple[Settings | None, list[Problem]]:
    """Returns the settings that plain data say, if they can be used, and what is wrong with the file.

    Args:
        plain: The data of `made`.
        made: The file.
        unresolved: The problems of references.
    """
    problems = [
        *made.problems,
        *(replace(problem, path=made.path_in_file(problem.path)) for problem in unresolved),
        *entry_problems(made, SERVER_KEYS),
    ]
    try:
        return Settings.model_validate(plain), problems
    except ValidationError as error:
        # A reference that stands for nothing is no valid URL either, and `comand` no command; once is enough.
        reported = {problem.path for problem in problems} | places_of_slipped_transports(made, SERVER_KEYS)
        for problem in dict.fromkeys([*of_validation(error, Settings, plain), *_misplaced_in(plain)]):
            path = made.path_in_file(problem.path)
            if path not in reported:
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
            resolver.secrets, resolver.missing = set(), []
            # What other clients keep there is not ours to look up.
            ours = {key: value for key, value in entry.items() if key in SERVER_KEYS}
            resolver.origin = origin_of(ours)
            resolved[name] = resolver.resolve(ours, (SERVERS_KEY, name))
            file, given = resolved[name].get("envFile"), resolved[name].get("env", {})
            if isinstance(file, str) and "${" not in file and is_object(given):
                resolved[name]["env"] = resolver.variables(file, (SERVERS_KEY, name, "envFile")) | given
            secrets[name] = frozenset(resolver.secrets)
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


def applicable(old: Settings, new: Settings) -> tuple[Settings, list[str], list[str]]:
    """Returns the settings that can be in force without a restart.

    Returns:
        The settings; the names of those that have changed and are in force now; and of those that need a restart.
    """
    before, after = dict(_leaves(old.cellblock.model_dump())), dict(_leaves(new.cellblock.model_dump()))
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    live = sorted(name for name in differing if any(f"{name}.".startswith(f"{one}.") for one in LIVE))
    section = old.cellblock
    for name in LIVE:
        section = _with(section, new.cellblock, name.split("."))
    return new.model_copy(update={"cellblock": section}), live, sorted(set(differing) - set(live))


def keeping(old: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """Returns the settings with the old entries of servers that now lack something, and a sentence for each.

    A file of a secret that is written anew, or a keyring that is locked, must not end what runs.
    """
    servers = dict(new.servers)
    kept: list[str] = []
    for name, config in new.servers.items():
        before = old.servers.get(name)
        if (
            config.missing is not None
            and before is not None
            and not before.disabled
            and before.missing is None
        ):
            # What is restricted meanwhile is in force.
            servers[name] = before.under_rules_of(config)
            kept.append(f"server {name} goes on as it was: {config.missing}")
    return (new.model_copy(update={"servers": servers}) if kept else new), kept


def described(change: Change, live: Sequence[str], waiting: Sequence[str]) -> list[str]:
    """Says what has become of a changed configuration, a sentence each, without values."""
    return [
        *(f"server {name} is added" for name in change.added),
        *(f"server {name} has changed; runs in flight keep its old session" for name in change.changed),
        *(f"server {name} is removed; runs in flight keep its session" for name in change.removed),
        *(f"the tools that server {name} may be asked for have changed" for name in change.ruled),
        *(f"cellblock.{name} has changed" for name in live),
        *(f"cellblock.{name} has changed, which needs a restart" for name in waiting),
    ]


def behind(now: Settings, wanted: Settings) -> str:
    """Says what of a configuration is not in force now, without values; nothing where it is."""
    kept = [
        f"server {name} goes on as it was: {config.missing}"
        for name, config in wanted.servers.items()
        if config.missing is not None and now.servers.get(name) != config
    ]
    waiting = applicable(now, wanted)[2]
    return "; ".join([*kept, *(f"cellblock.{name} has changed, which needs a restart" for name in waiting)])


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if is_object(value):
        for key, below in value.items():
            yield from _leaves(below, path if key == ALL else f"{path}.{key}" if path else key)
    else:
        yield path, value


def _with(old: Model, new: Model, names: Sequence[str]) -> Model:
    """Returns a model with one value, some levels down, of another."""
    name, *below = names
    value = getattr(new, name)
    if below:
        value = _with(getattr(old, name), value, below)
    return old.model_copy(update={name: value})
