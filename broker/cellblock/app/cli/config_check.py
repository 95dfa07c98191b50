"""Config_check runs `config check`: everything that is wrong with a file, and what it configures, without values."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.overlay_faults import OverlayFault, overlay_faults
from cellblock.app.cli.streams import write_json
from cellblock.app.config.formats import SERVERS_KEY, Normal
from cellblock.app.config.load import parse_source, read_settings, read_source
from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.base.settings.problems import SECTION_KEY, ConfigProblems, Problem, Source, dotted
from cellblock.base.settings.settings import CellblockSettings, ServerConfig, Settings
from cellblock.base.terminal import Painter
from cellblock.run.policy.policy import faults
from cellblock.tools.catalog.naming import LOCAL_SERVER, module_path, policy_ids


@dataclass(slots=True)
class Checked:
    """A checked file has its problems, those of its overlay files, and a word for how each server is reached."""

    file: str
    problems: list[Problem] = field(default_factory=list[Problem])
    servers: dict[str, str] = field(default_factory=dict[str, str])
    overlays: list[OverlayFault] = field(default_factory=list[OverlayFault])
    settings: Settings | None = None
    """Holds the settings of a file without errors."""

    @property
    def errors(self) -> int:
        return sum(problem.severity == "error" for problem in [*self.problems, *self.overlays])

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
            "problems": [problem.as_json() for problem in [*self.problems, *self.overlays]],
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
    checked = check_config(file)
    if checked.settings is not None:
        checked.overlays = overlay_faults(checked.settings.with_state_dir(parsed.state_dir))
    if parsed.json:
        write_json(checked.as_json())
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(checked, Painter(sys.stdout))))
    return EXIT_NO if checked.errors else EXIT_OK


def _lines(checked: Checked, paint: Painter) -> Iterator[str]:
    for problem in [*checked.problems, *checked.overlays]:
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
    problems += [
        replace(problem, path=normal.path_in_file(problem.path))
        for problem in _misfits(section, [*normal.entries()])
    ]
    checked.problems = source.placed([*problems, *_warnings(source, normal)])
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
            message = "the Python tools of cellblock.tools have this name"
            yield Problem((SERVERS_KEY, name), message, "Rename it.", at_key=True)
            return
    for fault in faults(section.policy, policy_ids(servers)):
        path = (SECTION_KEY, "policy", *fault.path)
        yield Problem(path, fault.message, fault.hint, at_key=fault.at_key)


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
