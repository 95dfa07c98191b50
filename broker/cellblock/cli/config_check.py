"""`cellblock config check`: everything that is wrong with a configuration file, and what it configures. No values."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from cellblock.catalog.naming import module_paths
from cellblock.cli.overlay_faults import OverlayFault
from cellblock.config.file.entry_keys import entry_problems
from cellblock.config.file.formats import SECTION_KEY, SERVERS_KEY, Normal
from cellblock.config.file.problems import ConfigProblems, Problem, Source
from cellblock.config.settings import (
    SERVER_KEYS,
    ServerConfig,
    Settings,
    parse_source,
    read_settings,
    read_source,
)
from cellblock.policy.faults import faults


@dataclass(slots=True)
class Checked:
    """What was found. `servers` says of each how it is reached, in one word; `overlays` is of the
    overlay files, for who looks at them too."""

    file: str
    problems: list[Problem] = field(default_factory=list[Problem])
    servers: dict[str, str] = field(default_factory=dict[str, str])
    overlays: list[OverlayFault] = field(default_factory=list[OverlayFault])
    settings: Settings | None = None
    """Of a file without errors."""

    @property
    def errors(self) -> int:
        """Problems that keep the file from being used."""
        return sum(problem.severity == "error" for problem in [*self.problems, *self.overlays])

    @property
    def ok(self) -> bool:
        """Whether the file can be used."""
        return self.errors == 0

    def usable(self) -> Settings:
        """The settings.

        Raises:
            ConfigProblems: The file has errors.
        """
        if self.settings is None:
            raise ConfigProblems(
                self.file, [problem for problem in self.problems if problem.severity == "error"]
            )
        return self.settings

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "file": self.file,
            "ok": self.ok,
            "problems": [problem.as_json() for problem in [*self.problems, *self.overlays]],
            "servers": self.servers,
        }


def check_config(path: str | os.PathLike[str]) -> Checked:
    """Reads a configuration file as every command does, and goes on after the first error.

    Raises:
        ConfigError: The file cannot be read at all.
    """
    source = read_source(path)
    checked = Checked(source.name)
    try:
        raw = parse_source(source)
    except ConfigProblems as error:
        checked.problems += error.problems
        return checked
    settings, problems, made = read_settings(raw, source)
    if settings is not None:
        problems = [replace(problem, path=made.path_in_file(problem.path)) for problem in _together(settings)]
    checked.problems = source.placed([*problems, *_warnings(source, made)])
    if settings is not None and checked.ok:
        checked.settings = settings
        checked.servers = {name: _kind(config) for name, config in settings.servers.items()}
    return checked


def _together(settings: Settings) -> list[Problem]:
    """What no broker starts with although each setting is sound: names that do not fit those of the servers."""
    if settings.cellblock.tools and "local" in settings.servers:
        message = "the Python tools of cellblock.tools have this name"
        return [Problem((SERVERS_KEY, "local"), message, "Rename it.", at_key=True)]
    found: list[Problem] = []
    # With the server of Python tools, which may be there without a word in the file.
    server_ids = list(module_paths([*settings.servers, "local"]).values())
    for fault in faults(settings.cellblock.policy, server_ids):
        path = (SECTION_KEY, "policy", *fault.path)
        found.append(Problem(path, fault.message, fault.hint, at_key=fault.at_key))
    return found


def _warnings(source: Source, made: Normal) -> list[Problem]:
    positions = source.positions()
    duplicates = positions.duplicates if positions is not None else []
    found = [
        Problem(
            path,
            "this key is there twice, and the last one counts",
            "Take one of them out.",
            "warning",
            True,
            positions.at(offset),
        )
        for path, offset in duplicates
        if positions is not None
    ]
    found += [problem for problem in entry_problems(made, SERVER_KEYS) if problem.severity == "warning"]
    if not made.servers and made.section is None:
        found.append(
            Problem((), "it names no servers and no settings", 'Start with {"mcpServers": {…}}.', "warning")
        )
    return found


def _kind(config: ServerConfig) -> str:
    if config.disabled:
        return "disabled"
    if config.command is not None:
        return "stdio"
    return "sse" if config.type == "sse" else "http"
