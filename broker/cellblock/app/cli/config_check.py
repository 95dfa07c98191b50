"""`config check`: everything that is wrong with a file, with its overlay files, and what it configures, without values.

Nothing is started for it: of servers that are not connected, the pins say which tools they had when last approved, and
the store what scripts got of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cellblock.app.assembly import store_of
from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import store_to_read
from cellblock.app.cli.streams import answer
from cellblock.app.config.formats import SERVERS_KEY, Normal
from cellblock.app.config.load import parse_source, read_settings, read_source
from cellblock.base.database import StoreError
from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.base.settings.problems import SECTION_KEY, ConfigProblems, Problem, Source, dotted
from cellblock.base.settings.settings import CellblockSettings, ServerConfig, Settings
from cellblock.base.settings.syntax import Position
from cellblock.base.store import LocalStore, Store
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.terminal import Painter, plain
from cellblock.run.policy.policy import faults, idle_patterns
from cellblock.tools.catalog.model import READ, Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.naming import LOCAL_SERVER, export_names, module_path, module_paths, policy_ids
from cellblock.tools.schemas.validation import InputValidator
from cellblock.tools.upstream.pins import PinError, PinStore, fingerprint as origin_of
from cellblock.types.learning.observation import NOT_GIVEN, GivenCheck, fingerprint
from cellblock.types.learning.overlay import OverlayFile, overlay_file, read_overlay
from cellblock.types.learning.store import TABLES, Observations

_SHOWN_COLUMNS: Final = 200

Inputs = Mapping[str, Any]
"""Maps a server's tools, by their MCP names, to their input schemas."""


@dataclass(frozen=True, slots=True)
class OverlayFault(Problem):
    """A problem of an overlay file. An error keeps brokers from starting."""

    file: Path = Path()

    def as_json(self) -> dict[str, Any]:
        return {**Problem.as_json(self), "file": str(self.file)}


def overlay_faults(settings: Settings, catalog: Catalog | None = None) -> list[OverlayFault]:
    """Returns the faults of all overlay files, in the order of the servers; `catalog` knows the tools of some."""
    folder = settings.overlay_dir
    if not folder.is_dir():
        return []
    pins = PinStore(_small_things(settings))
    inputs: dict[str, Inputs] = {}
    for server in catalog.servers.values() if catalog is not None else ():
        inputs[server.config_name] = {
            **{tool.tool_name: tool.input_schema for tool in server.tools},
            **{tool.name: None for tool in server.withheld},
        }
    checks = _checks(settings)
    files = {name: overlay_file(folder, name) for name in [*settings.servers, LOCAL_SERVER]}
    found: list[OverlayFault] = []
    for name, file in files.items():
        try:
            overlay = read_overlay(file)
        except ConfigProblems as error:
            found += (
                OverlayFault(one.path, one.message, one.hint, position=one.position, file=file)
                for one in error.problems
            )
            continue
        known = inputs[name] if name in inputs else _pinned(pins, name, settings.servers.get(name))
        for tool in overlay.tools:
            found += _tool_faults(overlay, name, tool, known, checks.get((name, tool), NOT_GIVEN), file)
    return [*found, *_strays(folder, files)]


def _tool_faults(
    overlay: OverlayFile,
    server: str,
    tool: str,
    known: Inputs | None,
    fit: GivenCheck,
    file: Path,
) -> Iterator[OverlayFault]:
    given, shown = overlay.tools[tool], _shown(tool)

    def fault(message: str, hint: str, *keys: str) -> OverlayFault:
        return OverlayFault(
            ("tools", tool), message, hint, "warning", position=overlay.place(tool, *keys), file=file
        )

    if known is not None and tool not in known:
        near = map(_shown, nearest_names(tool, known, 1))
        yield fault(
            f"{server} has no tool {shown}", did_you_mean(near, "Take the table out, or correct its name.")
        )
        return
    if known is not None and given.examples:
        validator = InputValidator(known[tool])
        for number, example in enumerate(given.examples, 1):
            if (violation := validator.check(example.input)) is not None:
                why = _shown(violation.sentence.rstrip("."))
                message = f"example {number} does not fit the input of {shown}: {why}"
                yield fault(message, "Correct the example.", "examples")
    if fit.misfits and fit.of == fingerprint(given.output_schema, given.json_text):
        message = (
            f"{fit.misfits} of {fit.checked} results of {shown} did not fit the output that is given; "
            f"the newest: {_shown(fit.newest)}"
        )
        yield fault(message, "Correct output, or take it out.", "output")


def _strays(folder: Path, files: Mapping[str, Path]) -> Iterator[OverlayFault]:
    """Yields the files of servers that this configuration does not have."""
    by_stem = {file.stem: name for name, file in files.items()}
    for file in sorted(folder.glob("*.toml")):
        if file.stem not in by_stem:
            near = (f"{name}.toml" for name in nearest_names(file.stem, by_stem, 1))
            yield OverlayFault(
                (),
                f"no server of this configuration has the name {_shown(file.stem)}",
                did_you_mean(near, "Rename it to that of a server, or move it away."),
                "warning",
                position=Position(1, 1),
                file=file,
            )


def _pinned(store: PinStore, server: str, config: ServerConfig | None) -> Inputs | None:
    """Returns the tools that a server had when they were pinned; None when that is not known."""
    if config is None:
        return None
    try:
        pins = store.load(server)
    except PinError:
        return None  # `approve` and the broker tell of it.
    if pins is None or pins.origin != origin_of(config):
        return None
    return {name: pin.definition.get("inputSchema") for name, pin in pins.listed().items()}


def _slips(settings: Settings) -> list[Problem]:
    """Returns what the policy names and a server did not have when its tools were pinned."""
    pins = PinStore(_small_things(settings))
    servers: dict[str, ServerEntry] = {}
    for name, path in module_paths(settings.enabled).items():
        exports = export_names(_pinned(pins, name, settings.servers[name]) or ())
        tools = tuple(ToolEntry(*names) for names in exports.items())
        servers[path] = ServerEntry(path, name, name, tools=tools, reads=READ)
    return [
        Problem((SECTION_KEY, "policy", *slip.path), slip.message, slip.hint, "warning", slip.at_key)
        for slip in idle_patterns(settings.cellblock.policy, Catalog(servers=servers))
        if slip.slip_at
    ]


def _small_things(settings: Settings) -> Store:
    with contextlib.suppress(ConfigError):  # the broker tells of it
        return store_to_read(settings)
    return LocalStore(settings.state_dir)


def _checks(settings: Settings) -> dict[tuple[str, str], GivenCheck]:
    """Returns how results fitted what was given, by server and tool, the newest definition of each."""
    try:
        store = store_of(settings)
        if not store.exists(TABLES):
            return {}
        with contextlib.closing(Observations(store.database(TABLES))) as observations:
            rows = sorted(observations.load().items(), key=lambda row: row[1].last_seen)
    except (StoreError, ConfigError):
        return {}  # The broker tells of it.
    return {(key.server, key.tool): seen.given for key, seen in rows}


def _shown(text: str) -> str:
    return plain(text, _SHOWN_COLUMNS)


@dataclass(slots=True)
class Checked:
    """A checked file has its problems, in `check` those of its overlay files, too, and a word for how each server is
    reached."""

    file: str
    problems: list[Problem] = field(default_factory=list[Problem])
    servers: dict[str, str] = field(default_factory=dict[str, str])
    settings: Settings | None = None
    """Holds the settings of a file without errors."""

    @property
    def errors(self) -> int:
        return sum(problem.severity == "error" for problem in self.problems)

    def usable(self) -> Settings:
        """Returns the settings of a file that can be used.

        Raises:
            ConfigProblems: The file has errors.
        """
        if self.settings is None:
            raise ConfigProblems(
                self.file, [problem for problem in self.problems if problem.severity == "error"]
            )
        return self.settings

    def sentences(self) -> list[str]:
        """Returns a line for each problem of the file, with its place and its hint."""
        return [f"{problem.text(self.file)} {problem.hint}" for problem in self.problems]

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "ok": not self.errors,
            "problems": [problem.as_json() for problem in self.problems],
            "servers": self.servers,
        }


def check(parsed: argparse.Namespace) -> int:
    """Prints the problems of a configuration file.

    Raises:
        ConfigError: No file is named, or it cannot be read.
    """
    file = parsed.config or default_file()
    if parsed.config is None and not file.exists():
        raise ConfigError("No configuration file is named.", hint="Give --config FILE.")
    source = read_source(file)
    checked = check_source(source)
    if checked.settings is not None:
        settings = checked.settings.with_state_dir(parsed.state_dir)
        checked.problems += [*source.placed(_slips(settings)), *overlay_faults(settings)]
    answer(parsed, checked.as_json(), "".join(f"{line}\n" for line in _lines(checked, Painter(sys.stdout))))
    return EXIT_NO if checked.errors else EXIT_OK


def _lines(checked: Checked, paint: Painter) -> Iterator[str]:
    for problem in checked.problems:
        file = problem.file if isinstance(problem, OverlayFault) else checked.file
        at = problem.position
        where = f"{file}:{at.line}:{at.column}" if at else str(file)
        kind = paint(problem.severity, "bold", "red" if problem.severity == "error" else "yellow")
        place = f"{problem.place}: " if problem.path else ""
        yield f"{paint(where, 'bold')}: {kind}: {place}{problem.message}. {problem.hint}"
    if count := checked.errors:
        yield f"{checked.file}: {paint(f'{count} error' + 's' * (count > 1), 'red')}"
    else:
        names = ", ".join(f"{dotted([name])} ({kind})" for name, kind in checked.servers.items()) or "none"
        yield f"{checked.file}: {paint('fine', 'green')}. Servers: {names}"


def check_config(path: str | os.PathLike[str]) -> Checked:
    """Reads a configuration file as every command does, and goes on after the first error.

    Raises:
        ConfigError: The file cannot be read at all.
    """
    return check_source(read_source(path))


def check_source(source: Source) -> Checked:
    """Returns what is wrong with the text of a configuration file, written or not."""
    checked = Checked(source.name)
    try:
        raw = parse_source(source)
    except ConfigProblems as error:
        checked.problems += error.problems
        return checked
    settings, problems, normal = read_settings(raw, source)
    section = settings.cellblock if settings is not None else _sound_parts(normal.section)
    misfits = (
        replace(problem, path=normal.path_in_file(problem.path))
        for problem in _misfits(section, [*normal.entries()])
    )
    checked.problems = source.placed([*problems, *misfits, *_warnings(source, normal)])
    if settings is not None and not checked.errors:
        checked.settings = settings
        checked.servers = {name: _kind(config) for name, config in settings.servers.items()}
    return checked


def _sound_parts(section: object) -> CellblockSettings:
    """Returns what `_misfits` looks at, of a section with errors: each part that has none, and no reference."""
    parts: dict[str, Any] = {}
    for key in ("policy", "tools"):
        part = section.get(key) if is_object(section) else None
        with contextlib.suppress(ValidationError):
            if part is not None and "${" not in json.dumps(part):
                CellblockSettings.model_validate({key: part})
                parts[key] = part
    return CellblockSettings.model_validate(parts)


def _misfits(section: CellblockSettings, servers: list[str]) -> Iterator[Problem]:
    """Yields what no broker starts with although each setting is sound: names that do not fit those of the servers."""
    for name in servers:
        if section.tools and module_path(name) == LOCAL_SERVER:
            yield Problem(
                (SERVERS_KEY, name),
                "the Python tools of cellblock.tools have this name",
                "Rename it.",
                at_key=True,
            )
            return
    for fault in faults(section.policy, policy_ids(servers)):
        yield Problem((SECTION_KEY, "policy", *fault.path), fault.message, fault.hint, at_key=fault.at_key)


def _warnings(source: Source, normal: Normal) -> Iterator[Problem]:
    if (positions := source.positions()) is not None:
        message, hint = "this key is there twice, and the last one counts", "Take one of them out."
        for path, offset in positions.duplicates:
            yield Problem(path, message, hint, "warning", True, positions.at(offset))
    if not normal.servers and normal.section is None:
        message, hint = "it names no servers and no settings", 'Start with {"mcpServers": {…}}.'
        yield Problem((), message, hint, "warning")


def _kind(config: ServerConfig) -> str:
    if config.disabled:
        return "disabled"
    if config.missing is not None:
        return "not started"
    if config.command is not None:
        return "stdio"
    return "sse" if config.type == "sse" else "http"
